"""Steps of a tokenizer.json that transformers classes replace (`rebuilt.json`).

The class named by `tokenizer_class` or implied by the model type keeps the file's vocabulary and builds all other steps
itself, so transformers may give other ids than the file. The table is made by `python -m
tests.helpers.tokenizer_classes` from the installed transformers. A test fails while the two differ.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from archetype.errors import DataError, ReadOtherwise, enumeration
from archetype.io.files import DAMAGED, read_json
from archetype.tokenizers.definition import FILE as DEFINITION
from archetype.tokenizers.files import FIX, library_errors
from archetype.tokenizers.named_tokens import named_in
from archetype.tokenizers.special_tokens import CONFIG, content

if TYPE_CHECKING:
    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

FILE = Path(__file__).with_name("rebuilt.json")
MODEL_CONFIG = "config.json"
CHARSMAP = "precompiled_charsmap"
KEPT = "kept"  # the class takes this step from the file
STEPS = ("normalizer", "pre_tokenizer", "decoder")
KEYS = (
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "clean_text",
    "keep_accents",
    "remove_space",
    "split_by_punct",
    "add_prefix_space",
    "legacy",
)
LEVEL = '"ByteLevel"'
AS_FILE = "PreTrainedTokenizerFast"
# defaults of settings that a model leaves out, by type
SETTINGS: dict[str, dict[str, Any]] = {
    "BPE": {
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
    "WordPiece": {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    "Unigram": {"unk_id": None, "byte_fallback": False},
    "WordLevel": {"unk_token": "<unk>"},
}


class ReadingClass(NamedTuple):
    """transformers class that reads a folder.

    Attributes:
        is_forced: whether the model type determines the class, whatever class the folder names.
    """

    name: str
    is_forced: bool


@cache
def table() -> dict[str, Any]:
    return json.loads(FILE.read_bytes())


def canonical(name: str, step: Any) -> Any:
    """Drop settings that change neither ids nor text: offsets, and settings of ByteLevel that a decoder ignores."""
    if isinstance(step, list):
        return [canonical(name, part) for part in step]
    if not isinstance(step, dict):
        return step
    if name == "decoder" and step.get("type") == "ByteLevel":
        return {"type": "ByteLevel"}
    plain = {key: canonical(name, value) for key, value in step.items() if key != "trim_offsets"}
    return plain | {CHARSMAP: "file"} if CHARSMAP in plain else plain


def settings_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's settings without its vocabulary. Empty affixes become None."""
    settings = {key: model.get(key, value) for key, value in SETTINGS[model["type"]].items()}
    return {"type": model["type"]} | {key: None if value == "" else value for key, value in settings.items()}


def reading_class(config: Mapping[str, Any], model: Mapping[str, Any], has_bytes: bool) -> ReadingClass | None:
    """Return the class with which `AutoTokenizer` reads a folder; None if the class uses the tokenizer.json unchanged.

    Args:
        config: contents of tokenizer_config.json.
        model: contents of config.json.
        has_bytes: whether the tokenizer.json has a ByteLevel step.

    Raises:
        DataError: a file has something else than a name as its class.
    """
    for file, contents in ((CONFIG, config), (MODEL_CONFIG, model)):
        if not isinstance(name := contents.get("tokenizer_class"), str | None):
            raise DataError(f"{file}: tokenizer_class", f"{name!r:.80} is not the name of a class", FIX)
    types, kind = table()["types"], model.get("model_type")
    known = types.get(kind) if isinstance(kind, str) else None
    keeps_class = kind in table()["kept"]
    named_here, named = config.get("tokenizer_class"), config.get("tokenizer_class") or model.get("tokenizer_class")
    if named and not config.get("auto_map"):
        name = named.removesuffix("Fast")
        # byte-level files, such as DeepSeek's, name this class too; transformers reads them unchanged
        if name == "LlamaTokenizer" and has_bytes and not keeps_class:
            return None
        if known is not None and known != name:
            return _known(known, True) if keeps_class else _known(name) if known else None
    return _known((named_here or named or known or "").removesuffix("Fast"))


def _known(name: str, is_forced: bool = False) -> ReadingClass | None:
    return ReadingClass(name, is_forced) if name in table()["names"] else None


def differences(tokenizer: "HuggingFaceTokenizer", name: str) -> list[str] | None:
    """Return the steps of a tokenizer that a class replaces, in the file's order; None if the table lacks the class."""
    if (row := table()["classes"].get(table()["names"][name])) is None:
        return None
    taken = row["defaults"] | {key: value for key, value in tokenizer.config.items() if key in row["defaults"]}
    names = {f"<{key}>": content(value) for key, value in taken.items() if key.endswith("_token")}
    rebuilt = [] if _has_its_tokens(tokenizer, row, names) else ["added_tokens"]
    normalizer = canonical("normalizer", _state(tokenizer.backend.normalizer))
    keys = taken | {CHARSMAP: f'"{CHARSMAP}"' in json.dumps(normalizer)}
    steps = built_steps(row, keys)
    if tokenizer.definition.get("post_processor") is None:
        steps["post_processor"] = row["alone"]
    for step, built in steps.items():
        if built == KEPT:
            continue
        match step:
            case "model":
                same = _same_model(tokenizer, built, names)
            case "post_processor":
                frames = {"single": _row(tokenizer, "a"), "pair": _row(tokenizer, "a", "b")}
                same = frames == {key: _ids(tokenizer, built[key], names) for key in frames}
            case _:
                same = canonical(step, _state(getattr(tokenizer.backend, step))) == built
        if not same:
            rebuilt.append(step)
    return rebuilt


def built_steps(row: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the steps that a class builds for the values of its keys; "another" if the table lacks these values."""
    return {
        step: next(
            (table()["steps"][case[-1]] for case in cases if case[:-1] == [settings[key] for key in keys]), "another"
        )
        for step, (keys, cases) in row["steps"].items()
    }


def _state(step: Any) -> Any:
    return None if step is None else json.loads(step.__getstate__())


def _has_its_tokens(tokenizer: "HuggingFaceTokenizer", row: Mapping[str, Any], names: Mapping[str, str | None]) -> bool:
    listed = {token["content"] for token in tokenizer.definition["added_tokens"]}
    named = {name for name in names.values() if name}
    if not {*named, *row["added"]} <= listed:
        return False
    if (decoder := tokenizer.config.get("added_tokens_decoder")) is not None:
        named |= {content(token) or "" for token in decoder.values()} | {name for name, _ in named_in(tokenizer.config)}
        if not listed <= named | {*row["added"]}:
            return False
    ends = {"<bos_token>": tokenizer.bos, "<eos_token>": next(iter(tokenizer.eos), None)}
    ids = ((names.get(key), id) for key, id in ends.items())
    return all(name is None or tokenizer.backend.token_to_id(name) == id for name, id in ids)


def _same_model(tokenizer: "HuggingFaceTokenizer", built: Any, names: Mapping[str, str | None]) -> bool:
    kind = type(tokenizer.backend.model).__name__
    if kind != built["type"]:
        return False
    in_file, rebuilt = settings_of({**tokenizer.definition["model"], "type": kind}), dict(built)
    if "unk_token" in rebuilt:
        rebuilt["unk_token"] = names.get(rebuilt["unk_token"], rebuilt["unk_token"])
    bytes = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)]
    silent = [] if any(bytes) else ["byte_fallback"]
    falls_back = all(bytes) and in_file.get("byte_fallback") and rebuilt.get("byte_fallback")
    if falls_back or _has_every_byte(tokenizer):  # then no token is unknown
        silent += ["unk_token", "fuse_unk"]
    elif in_file.get("unk_token") is None:
        silent += ["fuse_unk"]
    return all(in_file[key] == value for key, value in rebuilt.items() if key not in silent)


def _has_every_byte(tokenizer: "HuggingFaceTokenizer") -> bool:
    from tokenizers.pre_tokenizers import ByteLevel

    words = json.dumps(_state(tokenizer.backend.pre_tokenizer))
    return LEVEL in words and all(tokenizer.backend.token_to_id(byte) is not None for byte in ByteLevel.alphabet())


def _row(tokenizer: "HuggingFaceTokenizer", first: str, second: str | None = None) -> list[int | str]:
    with library_errors(DEFINITION, "cannot be used", DAMAGED):
        row = tokenizer.backend.encode(first, second, add_special_tokens=True)
    marked = [id if text is None else "AB"[text] for id, text in zip(row.ids, row.sequence_ids, strict=True)]
    # texts as "A" and "B", each once
    return [item for at, item in enumerate(marked) if isinstance(item, int) or item not in marked[:at]]


def _ids(tokenizer: "HuggingFaceTokenizer", row: Sequence[str], names: Mapping[str, str | None]) -> list[Any]:
    return [name if name in "AB" else tokenizer.backend.token_to_id(names.get(name, name) or "") for name in row]


def otherwise(tokenizer: "HuggingFaceTokenizer", folder: Path) -> Iterator[str]:
    file = folder / MODEL_CONFIG
    has_bytes = LEVEL in json.dumps([tokenizer.definition.get(step) for step in (*STEPS, "post_processor")])
    cls = reading_class(tokenizer.config, read_json(file) if file.is_file() else {}, has_bytes)
    if cls is None or (parts := differences(tokenizer, cls.name)) == []:
        return
    message = f"{DEFINITION}: transformers {table()['version']} reads this folder by {cls.name}, which"
    message += f" has its own {enumeration(parts, 'and')}" if parts else " is not compared with the file here"
    remedy = f"if {CONFIG} has 'tokenizer_class': '{AS_FILE}'"
    if cls.is_forced:
        remedy = f"by {AS_FILE}.from_pretrained"
    yield f"{message}, so its tokens may differ; it uses the file unchanged {remedy}"


def name_rebuilt(tokenizer: "HuggingFaceTokenizer", folder: Path) -> None:
    """Warn about the steps that transformers does not take from a folder's tokenizer.json.

    Warns:
        ReadOtherwise: transformers' class replaces steps, which the warning names.
    """
    for message in otherwise(tokenizer, folder):
        warnings.warn(message, ReadOtherwise, stacklevel=2)
