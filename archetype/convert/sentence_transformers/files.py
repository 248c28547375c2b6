"""Files of a sentence-transformers folder, and its settings for input texts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from archetype.errors import CheckpointError, SpecError, nearest
from archetype.io import atomic
from archetype.io.yaml import read_mapping
from archetype.spec.base import MAX_LENGTH

MODULES = "modules.json"
SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
CONFIG, WEIGHTS, PICKLE = "config.json", "model.safetensors", "pytorch_model.bin"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names that the library tries for documents, in this order
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class SentenceSettings:
    """Settings for preparing a text before tokenization.

    Attributes:
        max_length: number of tokens after which texts are truncated (default: the model's context length).
        prompts: text prefixes by name.
        default_prompt: name of the prompt used if no other is given.
        pools_prompt: whether pooling includes the prompt's tokens.
    """

    max_length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pools_prompt: bool = True

    def prepared(self, text: str, prompt: str | None = None) -> str:
        """Return a text with a prompt in front of it (default: the default prompt).

        Raises:
            SpecError: the model has no prompt of this name.
            CheckpointError: pooling must exclude the prompt, which is not supported.
        """
        name = self.default_prompt if prompt is None else prompt
        if prompt is not None and prompt not in self.prompts:
            cause = f"the model has no prompt named {prompt!r:.40}"
            remedy = nearest(prompt, list(self.prompts)) if self.prompts else "remove it"
            raise SpecError("prompt", cause, remedy)
        before = self.prompts.get(name, "") if name is not None else ""
        if before and not self.pools_prompt:
            raise CheckpointError("include_prompt", "pooling without the prompt is not supported", "give --pooling")
        return (before + text).lower() if self.lowercase else before + text

    @property
    def query_prompt(self) -> str | None:
        """Name of the prompt that the library uses for queries."""
        return "query" if "query" in self.prompts else None

    @property
    def document_prompt(self) -> str | None:
        """Name of the prompt that the library uses for documents."""
        return next((name for name in DOCUMENT_PROMPTS if name in self.prompts), None)


def read_files(folder: Path, allow_pickle: bool = False) -> dict[str, bytes]:
    """Return the files with modules, prompts and lengths, keyed by relative path.

    Raises:
        CheckpointError: the path of a module is outside the folder.
    """
    names = [MODULES, SETTINGS, PROMPTS]
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    if not files:
        return {}
    # modules.json names the folders of the other modules; the transformer's is the folder itself ("")
    for module in listed_modules(files, str(folder)):
        if path := module["path"]:
            names += [f"{path}/{name}" for name in (CONFIG, WEIGHTS, *([PICKLE] if allow_pickle else []))]
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    settings, length = read_json(files, SETTINGS, str(folder)), _longest(folder)
    if settings.get("max_seq_length") is None and length is not None:  # since version 6 only the tokenizer stores it
        files[SETTINGS] = json.dumps(settings | {"max_seq_length": length}, indent=2).encode()
    return files


def _longest(folder: Path) -> int | None:
    # some tokenizers store an absurd limit, which counts as none
    if not (file := folder / "tokenizer_config.json").is_file():
        return None
    length = read_mapping(file).get("model_max_length")
    return length if isinstance(length, int) and 0 < length <= MAX_LENGTH else None


def write_files(files: Files, folder: Path) -> None:
    """Write the files with the modules into an existing folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        atomic.write_bytes(folder / name, content)


def write_prompts(prompts: Mapping[str, str], folder: Path) -> None:
    """Add prompts to a folder, which is created if necessary."""
    folder.mkdir(exist_ok=True)
    settings = read_json(read_files(folder), PROMPTS, str(folder))
    atomic.write_json(folder / PROMPTS, settings | {"prompts": (settings.get("prompts") or {}) | dict(prompts)})


def read_settings(files: Files) -> SentenceSettings:
    """Return the settings stored in the files, with defaults for missing settings.

    Raises:
        CheckpointError: a key is wrong.
    """
    settings, prompt_settings = read_json(files, SETTINGS), read_json(files, PROMPTS)
    length, prompts = settings.get("max_seq_length"), prompt_settings.get("prompts") or {}
    if length is not None and (type(length) is not int or length < 1):
        cause = f"{length!r} is not a positive whole number"
        raise CheckpointError(f"{SETTINGS}: max_seq_length", cause, "fix the file")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise CheckpointError(f"{PROMPTS}: prompts", "must map names to texts", "fix the file")
    name = prompt_settings.get("default_prompt_name")
    if name is not None and name not in prompts:
        cause = f"{name!r:.40} is not one of the prompts"
        raise CheckpointError(f"{PROMPTS}: default_prompt_name", cause, "fix the file")
    modules = (module for module in listed_modules(files) if module["type"].rpartition(".")[2] == "Pooling")
    pooling = [read_json(files, f"{module['path']}/{CONFIG}") for module in modules]
    return SentenceSettings(
        max_length=length,
        lowercase=settings.get("do_lower_case") is True,
        prompts={name: text for name, text in prompts.items() if text is not None},
        default_prompt=name,
        pools_prompt=all(config.get("include_prompt", True) is True for config in pooling),
    )


def listed_modules(files: Files, folder: str = "") -> list[dict[str, str]]:
    """Return the modules in modules.json, each with its type and relative path.

    Raises:
        CheckpointError: the list is damaged, or a path is outside the folder.
    """
    if MODULES not in files:
        return []
    modules, cause = read_json(files, MODULES, folder), "must list modules, each with a type and a folder"
    error = CheckpointError(f"{folder}/{MODULES}" if folder else MODULES, cause, "fix the file")
    if not isinstance(modules, list):
        raise error
    for module in modules:
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise error
        # one folder inside the model's: the path comes from a downloaded file
        if len(PurePosixPath(module["path"]).parts) > 1 or module["path"] in ("..", "/"):
            raise error
    return modules


def read_json(files: Files, name: str, folder: str = "") -> Any:
    """Return the parsed file, or an empty dict if the file does not exist.

    Raises:
        CheckpointError: the file is not JSON.
    """
    try:
        return json.loads(files.get(name, b"{}"))
    except ValueError:
        folder = f"{folder}/{name}" if folder else name
        raise CheckpointError(folder, "is not JSON", "is the file complete?") from None
