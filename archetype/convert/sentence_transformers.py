"""modules.json of sentence-transformers: how the vectors of a text's tokens become the vector of the text."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load
from torch import Tensor

from archetype.errors import CheckpointError
from archetype.io import atomic
from archetype.io.yaml import read_mapping
from archetype.spec.base import MAX_LENGTH

FILE = "modules.json"
SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
CONFIG, WEIGHTS, PICKLE = "config.json", "model.safetensors", "pytorch_model.bin"
# Modes of pooling with their older keys, in the order in which the vectors of several are joined.
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x, "Tanh": torch.tanh, "GELU": torch.nn.functional.gelu, "ReLU": torch.relu,
    "Sigmoid": torch.sigmoid, "SiLU": torch.nn.functional.silu,
}  # fmt: skip
Files = Mapping[str, bytes]
Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SentenceModules:
    """The modules after the transformer, and what comes before it.

    Attributes:
        pooling: modes whose vectors are joined.
        steps: layers on the pooled vector; None scales it to length 1.
        max_length: tokens that a text is cut to (absent: none is cut).
        lowercase: whether texts are lowercased.
        prompt: text before every text.
    """

    pooling: tuple[str, ...]
    steps: tuple[Step | None, ...] = ()
    max_length: int | None = None
    lowercase: bool = False
    prompt: str = ""

    def prepared(self, text: str) -> str:
        """The text that is read."""
        text = self.prompt + text
        return text.lower() if self.lowercase else text

    def pooled(self, vectors: Float[Tensor, "B T D"], num_tokens: Tensor) -> Float[Tensor, "B E"]:
        """The pooled vectors of texts that are padded at their ends."""
        places = torch.arange(vectors.shape[1], device=vectors.device)
        is_token, counts = places < num_tokens[:, None], num_tokens[:, None]
        weights, total = is_token[..., None] * (places[:, None] + 1), (vectors * is_token[..., None]).sum(1)
        pools: dict[str, Callable[[], Tensor]] = {
            "cls": lambda: vectors[:, 0],
            "max": lambda: vectors.masked_fill(~is_token[..., None], -torch.inf).amax(1),
            "mean": lambda: total / counts,
            "mean_sqrt_len_tokens": lambda: total / counts.sqrt(),
            "weightedmean": lambda: (vectors * weights).sum(1) / weights.sum(1),
            "lasttoken": lambda: vectors[torch.arange(len(vectors)), num_tokens - 1],
        }
        return torch.cat([pools[mode]() for mode in self.pooling], dim=-1)

    def finished(self, pooled: Float[Tensor, "B E"], normalized: bool | None) -> Float[Tensor, "B E"]:
        """The vectors of texts; `normalized` to length 1 or not, whatever the last module says (absent: as it says)."""
        for step in self.steps:
            if step is not None:
                pooled = step(pooled)
            elif normalized is not False:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return torch.nn.functional.normalize(pooled, dim=-1) if normalized else pooled


def read_files(folder: Path, allow_pickle: bool = False) -> dict[str, bytes]:
    """The files of a folder's modules by their paths there; none where it has no modules.json.

    Raises:
        CheckpointError: a module lies outside the folder.
    """
    if not (folder / FILE).is_file():
        return {}
    names = [FILE, SETTINGS, PROMPTS]
    for module in _modules({FILE: (folder / FILE).read_bytes()}, str(folder)):
        if path := module["path"]:
            names += [f"{path}/{name}" for name in (CONFIG, WEIGHTS, *([PICKLE] if allow_pickle else []))]
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    settings, length = _json(files, SETTINGS, str(folder)), _longest(folder)
    if settings.get("max_seq_length") is None and length is not None:  # said by the tokenizer, from version 6 on
        files[SETTINGS] = json.dumps(settings | {"max_seq_length": length}, indent=2).encode()
    return files


def _longest(folder: Path) -> int | None:
    """The longest text by the tokenizer's files; those without a limit have a number beyond all lengths."""
    if not (file := folder / "tokenizer_config.json").is_file():
        return None
    length = read_mapping(file).get("model_max_length")
    return length if isinstance(length, int) and 0 < length <= MAX_LENGTH else None


def write_files(files: Files, folder: Path) -> None:
    """Write the files of modules into a folder that exists."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        atomic.write_bytes(folder / name, content)


def parse(files: Files) -> SentenceModules | None:
    """What the files of modules say; None where there are none, or no module pools.

    Raises:
        CheckpointError: names the module or the key that is not known here.
    """
    pooling: tuple[str, ...] = ()
    steps: list[Step | None] = []
    for module in _modules(files, "") if files else ():
        kind, path = module["type"].rpartition(".")[2], module["path"]
        match kind:
            case "Transformer" if not path:
                pass
            case "Pooling" if not pooling:
                pooling = _read_pooling(files, path)
            case "Normalize" if pooling:
                steps.append(None)
            case "Dense" if pooling:
                steps.append(_read_dense(files, path))
            case "Dropout" if pooling:
                pass  # of training
            case _:
                raise CheckpointError(f"{FILE}: {path or kind}", f"a module {kind} here is not known", "give --pooling")
    if not pooling:
        return None
    settings, prompts = _json(files, SETTINGS), _json(files, PROMPTS)
    name, length = prompts.get("default_prompt_name"), settings.get("max_seq_length")
    prompt = "" if name is None else str(prompts.get("prompts", {}).get(name, ""))
    if length is not None and (not isinstance(length, int) or length < 1):
        raise CheckpointError(
            f"{SETTINGS}: max_seq_length", f"{length!r} is not a positive whole number", "fix the file"
        )
    return SentenceModules(pooling, tuple(steps), length, settings.get("do_lower_case") is True, prompt)


def _read_pooling(files: Files, path: str) -> tuple[str, ...]:
    config = _json(files, f"{path}/{CONFIG}")
    said = config.get("pooling_mode", [mode for key, mode in MODES.items() if config.get(key) is True])
    modes = (said,) if isinstance(said, str) else tuple(said)
    if not modes or not set(modes) <= set(MODES.values()):
        known = ", ".join(MODES.values())
        raise CheckpointError(f"{path}/{CONFIG}: pooling_mode", f"{said!r} is not known", f"known are {known}")
    if config.get("include_prompt", True) is not True and _json(files, PROMPTS).get("default_prompt_name"):
        raise CheckpointError(f"{path}/{CONFIG}: include_prompt", "a prompt that is not pooled is not known here")
    return modes


def _read_dense(files: Files, path: str) -> Step:
    config = _json(files, f"{path}/{CONFIG}")
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise CheckpointError(f"{path}/{CONFIG}: activation_function", f"{name!r} is not known", "give --pooling")
    if config.get("use_residual") or config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise CheckpointError(f"{path}/{CONFIG}", "is not of a plain layer on a text's vector", "give --pooling")
    if f"{path}/{WEIGHTS}" in files:
        tensors = load(files[f"{path}/{WEIGHTS}"])
    elif f"{path}/{PICKLE}" in files:
        tensors = torch.load(io.BytesIO(files[f"{path}/{PICKLE}"]), weights_only=True)
    else:
        remedy = "is the folder complete? a pickle needs --allow-pickle"
        raise CheckpointError(f"{path}/{WEIGHTS}", "is missing", remedy)
    weight, bias, function = tensors["linear.weight"], tensors.get("linear.bias"), ACTIVATIONS[name]
    return lambda x: function(torch.nn.functional.linear(x, weight.to(x), None if bias is None else bias.to(x)))


def _modules(files: Files, place: str) -> list[dict[str, str]]:
    """The listed modules, each with its type and its path below the folder."""
    modules, cause = _json(files, FILE, place), "does not list modules, each with a type and a folder of its own"
    error = CheckpointError(f"{place}/{FILE}" if place else FILE, cause, "fix the file")
    if not isinstance(modules, list):
        raise error
    for module in modules:
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise error
        if len(PurePosixPath(module["path"]).parts) > 1 or module["path"] in ("..", "/"):
            raise error
    return modules


def _json(files: Files, name: str, place: str = "") -> Any:
    """The contents of a file; nothing where it is not there."""
    try:
        return json.loads(files.get(name, b"{}"))
    except ValueError:
        place = f"{place}/{name}" if place else name
        raise CheckpointError(place, "is not JSON", "is the file whole?") from None
