"""Warnings about keys in tokenizer files that Archetype does not implement."""

import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from archetype.errors import NotObeyed, UnreadKeys, shorten
from archetype.tokenizers.added import FLAGS
from archetype.tokenizers.definition import FILE
from archetype.tokenizers.special_tokens import CONFIG, EXTRA, OLDER_EXTRA, content

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
PARTS = {*STEPS, "version", "truncation", "padding", "added_tokens", "model"}
OLDER = {"add_prefix_space", "str_rep"}  # older spellings, which the library reads but writes differently
ADDED = {"id", "content", *FLAGS}
MODEL = {
    "type",
    "vocab",
    "merges",
    "dropout",
    "unk_token",
    "unk_id",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "max_input_chars_per_word",
}
# keys that are read here or elsewhere, and keys that change neither ids nor text
SILENT = {
    "cls_token", "bos_token", "sep_token", "eos_token",
    "added_tokens_decoder", "chat_template", "model_max_length", "max_length", "max_len", "tokenizer_class",
    "padding_side", "truncation_side", "truncation_strategy", "stride", "padding", "pad_to_multiple_of",
    "pad_token_type_id", "pad_token_id", "model_input_names", "name_or_path", "special_tokens_map_file",
    "tokenizer_file", "vocab_file", "merges_file", "errors", "from_slow", "use_fast", "backend", "is_local",
    "local_files_only", "init_inputs", "auto_map", "processor_class", "vocab_size", "use_default_system_prompt",
    "response_schema", "return_token_type_ids", "transformers_version", "extra_ids", "device_map",
    "spaces_between_special_tokens", "verbose", "never_split", "do_basic_tokenize", "remove_space", "keep_accents",
    "fix_mistral_regex", "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    "token_type_ids_pattern", "token_type_ids_include_special_tokens", "special_tokens_pattern", "image_seq_length",
    "added_tokens", "full_tokenizer_file", "commit_hash", "trust_remote_code",
}  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "split_special_tokens": (False,),
    "sp_model_kwargs": ({},),
    "legacy": (True,),
    "model_specific_special_tokens": ({},),
    "clean_up_tokenization_spaces": (False,),
}
LISTS = (EXTRA, OLDER_EXTRA)
NAMES = ("unk_token", "pad_token", "mask_token", *LISTS)  # keys that name special tokens


def name_unread(definition: Mapping[str, Any], backend: "Backend") -> None:
    """Warn about keys of a tokenizer.json that its library does not read.

    Warns:
        UnreadKeys: the file has keys that the library does not read.
        NotObeyed: the file uses BPE dropout.
    """
    keys = [key for key in definition if key not in PARTS]
    keys += [f"model.{key}" for key in definition["model"] if key not in MODEL]
    for step in STEPS:
        if isinstance(definition.get(step), dict):
            read = json.loads(getattr(backend, step).__getstate__())
            keys += [f"{step}{path}" for path in _missing(definition[step], read)]
    tokens = enumerate(definition.get("added_tokens") or [])
    keys += [f"added_tokens[{index}].{key}" for index, token in tokens for key in token if key not in ADDED]
    if keys:
        unread = shorten(", ".join(keys), 200)
        warnings.warn(f"{FILE}: {unread}: not read by the library, so without effect", UnreadKeys, stacklevel=2)
    if definition["model"].get("dropout"):
        message = f"{FILE}: model.dropout (random merges) is not applied"
        warnings.warn(message, NotObeyed, stacklevel=2)


def _missing(written: Any, read: Any) -> Iterator[str]:
    if isinstance(written, dict) and isinstance(read, dict):
        for key, value in written.items():
            if key in read:
                yield from (f".{key}{path}" for path in _missing(value, read[key]))
            elif key not in OLDER:
                yield f".{key}"
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for index, pair in enumerate(zip(written, read, strict=True)):
            yield from (f"[{index}]{path}" for path in _missing(*pair))


def name_unobeyed(config: Mapping[str, Any], obeyed: Mapping[str, Any], tokens: Collection[str]) -> None:
    """Warn about keys of tokenizer_config.json that have no effect in Archetype but may have in other libraries.

    Args:
        config: contents of tokenizer_config.json, merged with special_tokens_map.json.
        obeyed: values with which keys have no effect, because the vocabulary's file already has the same effect.
        tokens: names of special tokens.

    Warns:
        NotObeyed: the file has such keys.
    """
    keys = []
    for key, value in config.items():
        asks = value not in (None, *NEUTRAL.get(key, ())) and not (key in obeyed and obeyed[key] == value)
        if key in NAMES:
            listed = value.values() if isinstance(value, dict) and key in LISTS else value
            named = listed if isinstance(listed, Collection) and key in LISTS else (value,)
            asks = asks and not all(content(name) in tokens for name in named)
        elif key in SILENT or key.startswith("_") or (key.endswith("_token") and not isinstance(value, bool)):
            continue  # other *_token keys belong to images and the like
        if asks:
            keys.append(key)
    if keys:
        unobeyed = shorten(", ".join(map(repr, keys)), 200)
        warnings.warn(f"{CONFIG}: {unobeyed} may change tokens elsewhere, but not here", NotObeyed, stacklevel=2)


def said_by_definition(definition: Mapping[str, Any], starts: bool, ends: bool) -> dict[str, Any]:
    """Return the effect of a tokenizer.json, expressed in the keys that older classes read.

    Args:
        starts: whether the tokenizer.json adds bos before a text.
        ends: whether the tokenizer.json adds eos after a text.
    """
    steps = {name: json.dumps(definition.get(name)) for name in STEPS}
    before, cut = steps["normalizer"], steps["pre_tokenizer"]
    prefixes = re.search(r'"(add_prefix_space": true|prepend_scheme": "(always|first)"|prepend": ")', before + cut)
    lower = re.search(r'"lowercase": true|"type": "Lowercase"', before) is not None
    accents = re.search(r'"strip_accents": (true|false)', before)
    return {
        "add_prefix_space": prefixes is not None,
        "do_lower_case": lower,
        "do_lowercase": lower,
        "strip_accents": accents[1] == "true" if accents else lower,
        "tokenize_chinese_chars": '"handle_chinese_chars": true' in before,
        "clean_up_tokenization_spaces": True,
        "add_bos_token": starts,
        "add_eos_token": ends,
        "legacy": False,
    }
