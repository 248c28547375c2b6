"""What the tokenizer classes of transformers build: writes `archetype/tokenizers/rebuilt.json`.

    python -m tests.helpers.tokenizer_classes

Each class reads small folders whose tokenizer.json has steps that no class has, with and without a table of characters
and with each value of the keys that the class takes; a step that is there afterwards is the file's, any other the
class's own.
"""

import inspect
import json
import tempfile
import warnings
from base64 import b64encode
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerBase
from transformers.models.auto import tokenization_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from archetype.tokenizers.composed import frame
from archetype.tokenizers.rebuilt import CHARSMAP, FILE, KEPT, KEYS, STEPS, canonical, settings_of
from tests.helpers.sentencepieces import trained

MARK = "\ue000"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
IN_PYTHON = "Python"  # a step that no file can say
AS_FILE = ("TokenizersBackend", "PythonBackend", "MistralCommonBackend")  # which read the files as they are
MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")


def classes() -> dict[str, Any]:
    """Every name that `tokenizer_class` may have, without "Fast", and the class that it stands for."""
    named = {name for name in dir(transformers) if name.removesuffix("Fast").endswith("Tokenizer")}
    named |= {name for name in tokenization_auto.TOKENIZER_MAPPING_NAMES.values() if name}
    resolve = tokenization_auto.tokenizer_class_from_name
    resolved = {
        name: resolve(name) or resolve(f"{name}Fast") for name in sorted(one.removesuffix("Fast") for one in named)
    }
    return {
        name: cls
        for name, cls in resolved.items()
        if isinstance(cls, type) and issubclass(cls, PreTrainedTokenizerBase) and cls.__name__ not in AS_FILE
    }


def marked(kind: str, has_map: bool) -> dict[str, Any]:
    """A tokenizer.json with steps of no class."""
    specials = [f"<{name}>" for name in NAMES]
    words = [*specials, "▁", "a", "b", "##a", "##b", "Ġ", "x</w>"]
    ids = {word: id for id, word in enumerate(words)}
    models: dict[str, dict[str, Any]] = {
        "BPE": {"vocab": ids, "merges": []},
        "Unigram": {"vocab": [[word, -1.0] for word in words], "unk_id": 2, "byte_fallback": False},
        "WordPiece": {"vocab": ids, "unk_token": "<unk_token>", "continuing_subword_prefix": MARK,
                      "max_input_chars_per_word": 7},
        "WordLevel": {"vocab": ids, "unk_token": "<unk_token>"},
    }  # fmt: skip
    normalizer: dict[str, Any] = {"type": "Replace", "pattern": {"String": MARK}, "content": ""}
    if has_map:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Precompiled", CHARSMAP: charsmap()}, normalizer]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": id, "content": word, **flags} for id, word in enumerate(specials)],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": MARK},
        "post_processor": frame({"<mask_token>": ids["<mask_token>"]}, {}),
        "decoder": {"type": "BPEDecoder", "suffix": MARK},
        "model": {"type": kind, **models[kind]},
    }  # fmt: skip


def charsmap() -> str:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(trained({"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"}))
    return b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def read(
    cls: Any, kind: str, has_map: bool, config: dict[str, Any], is_framed: bool = True
) -> tuple[dict[str, Any], Any]:
    """Return the steps that a class replaces in a file, or in one without a post-processor; and the tokenizer."""
    file = marked(kind, has_map)
    if not is_framed:
        file["post_processor"] = None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_text(json.dumps(file))
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = cls.from_pretrained(folder)
    built = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = {name: canonical(name, built[name]) for name in STEPS}
    replaced: dict[str, Any] = {name: step for name, step in steps.items() if step != canonical(name, file[name])}
    if (row := framed(tokenizer))["pair"] != ["<mask_token>", "A", "B"]:
        replaced["post_processor"] = row
    backend = Backend.from_str(tokenizer.backend_tokenizer.to_str())  # whose `decode` no class has replaced
    ids = range(len(NAMES), backend.get_vocab_size(with_added_tokens=False))
    plain = backend.decode([*ids], skip_special_tokens=True)
    if tokenizer.decode([*ids], skip_special_tokens=True, clean_up_tokenization_spaces=False) != plain:
        replaced["decoder"] = IN_PYTHON
    if any(name in replaced for name in STEPS):  # a class that builds one builds the model, too
        replaced["model"] = settings_of(built["model"])
    return replaced, tokenizer


def framed(tokenizer: Any) -> dict[str, Any]:
    """The special tokens around one text and around two, by their names, and the type of each place."""
    backend = Backend.from_str(tokenizer.backend_tokenizer.to_str())
    backend.normalizer = backend.pre_tokenizer = None
    backend.no_padding()
    backend.no_truncation()
    texts = {"A": "a", "B": "b"}
    out: dict[str, Any] = {"types": {}}
    for name, letters in (("single", ("A",)), ("pair", ("A", "B"))):
        row = backend.encode(*(texts[one] for one in letters))
        names = [
            token if text is None else letters[text] for token, text in zip(row.tokens, row.sequence_ids, strict=True)
        ]
        places = [at for at, one in enumerate(names) if one not in letters or one not in names[:at]]
        out[name] = [names[at] for at in places]
        out["types"][name] = [row.type_ids[at] for at in places]
    return out


def described(cls: Any) -> dict[str, Any] | None:
    """The row of a class; None if none of these files can be read by it, so that nothing is known of it."""
    own = {f"{name}": f"<{name}>" for name in NAMES}
    kinds = [cls.model.__name__] if cls.model is not None else MODELS
    for kind in kinds:
        try:
            read(cls, kind, False, own)
        except Exception:  # of any class: libraries of two languages raise what they like
            continue
        break
    else:
        return None
    values = {
        key: tuple({json.dumps(one): one for one in (default, True, False)}.values())
        for key, default in keys_of(cls).items()
    }
    cases = []
    for has_map, *chosen in product((False, True), *values.values()):
        said = dict(zip(values, chosen, strict=True))
        settings = {key: value for key, value in said.items() if value is not None}
        cases.append(({CHARSMAP: has_map} | said, read(cls, kind, has_map, own | settings)[0]))
    steps = {}
    for name in dict.fromkeys(name for _, case in cases for name in case):
        steps[name] = smallest([(keys, case.get(name, KEPT)) for keys, case in cases])
    if not steps:
        return {}
    _, plain = read(cls, kind, False, own, is_framed=False)
    taken_names = signature(cls)
    names = {key: str(taken_names[key].default) for key in NAMES if key in taken_names and taken_names[key].default}
    listed = {f"<{name}>" for name in NAMES}
    added = sorted(token.content for token in plain.added_tokens_decoder.values() if token.content not in listed)
    few = [*added[:2], *added[-1:]] if len(added) > 10 else added  # languages, which a file has all or none of
    return {"model": kind, "defaults": names | keys_of(cls), "added": few, "alone": framed(plain), "steps": steps}


def keys_of(cls: Any) -> dict[str, bool | None]:
    """The keys of tokenizer_config.json that change a step, and what a class takes where there are none."""
    taken = signature(cls)
    return {key: taken[key].default for key in KEYS if key in taken}


def signature(cls: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a class and of those above it."""
    initials = [one.__init__ for one in reversed(cls.__mro__) if "__init__" in one.__dict__]
    return {key: value for one in initials for key, value in inspect.signature(one).parameters.items()}


def smallest(cases: list[tuple[dict[str, Any], Any]]) -> list[Any]:
    """The keys on which a step depends, and the step for each of their values."""
    keys = list(cases[0][0])
    for key in [*keys]:
        fewer = [other for other in keys if other != key]
        built = {(json.dumps([said[one] for one in fewer]), json.dumps(step)) for said, step in cases}
        if len(built) == len({said for said, _ in built}):
            keys = fewer
    values = {json.dumps([said[key] for key in keys]): step for said, step in cases}
    return [keys, [[json.loads(said), step] for said, step in values.items()]]


def table() -> dict[str, Any]:
    rows: dict[str, Any] = {}
    names: dict[str, str | None] = {}
    for name, cls in classes().items():
        if not issubclass(cls, TokenizersBackend):
            names[name] = None
            continue
        if cls.__name__ not in rows:
            rows[cls.__name__] = described(cls)
        if rows[cls.__name__] != {}:
            names[name] = cls.__name__ if rows[cls.__name__] is not None else None
    types = {
        kind: "" if name.removesuffix("Fast") in AS_FILE else name.removesuffix("Fast")
        for kind, name in tokenization_auto.TOKENIZER_MAPPING_NAMES.items()
        if name is not None and kind in CONFIG_MAPPING_NAMES  # a class whose package is missing counts as none
    }
    pool: list[str] = []
    for row in filter(None, rows.values()):
        for step, (keys, cases) in row["steps"].items():
            texts = [json.dumps(value) for _, value in cases]
            pool += [text for text in dict.fromkeys(texts) if text not in pool]
            row["steps"][step] = [
                keys,
                [[*said, pool.index(text)] for (said, _), text in zip(cases, texts, strict=True)],
            ]
    return {
        "version": transformers.__version__,
        "steps": [json.loads(text) for text in pool],
        "classes": {name: row for name, row in sorted(rows.items()) if row},
        "names": dict(sorted(names.items())),
        "types": dict(sorted(types.items())),
        "kept": sorted(tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS & types.keys()),
    }


def lines(value: dict[str, Any]) -> Iterator[str]:
    """JSON with a line for each class, so that releases can be compared."""
    yield "{"
    yield f' "version": {json.dumps(value["version"])},'
    yield ' "steps": ['
    yield ",\n".join(f"  {json.dumps(step, ensure_ascii=False)}" for step in value["steps"])
    yield " ],"
    yield ' "classes": {'
    rows = [f"  {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in value["classes"].items()]
    yield ",\n".join(rows)
    yield " },"
    for key in ("names", "types"):
        yield f" {json.dumps(key)}: {json.dumps(value[key])},"
    yield f' "kept": {json.dumps(value["kept"])}'
    yield "}"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    FILE.write_text("\n".join(lines(table())) + "\n")
