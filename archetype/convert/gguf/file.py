"""Write GGUF files with the `gguf` library and verify them by reading them back."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from archetype.convert.gguf.choice import gguf_of, keys_of
from archetype.convert.gguf.encoders import as_mean
from archetype.convert.gguf.header import gguf_library, read_header
from archetype.convert.gguf.keys import OUTSIDE, Value, Wide
from archetype.convert.gguf.llama_cpp import check_ids, report_difference
from archetype.convert.gguf.tensors import NUMBERS, Stored, file_shapes, gguf_tensors, numbers_of_layers, own_type
from archetype.convert.gguf.tokenizer import read_tokenizer
from archetype.convert.gguf.types import FILE_TYPES, Facts, check_file_type, tensor_types
from archetype.convert.gguf.vocabulary import PREFIX, Vocabulary, vocabulary
from archetype.errors import CheckpointError
from archetype.families import Family
from archetype.io.atomic import system_errors
from archetype.models.build import Model
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.same_ids import differing_ends

FILE = "model.gguf"
TEXT = -1  # placeholder for the ids of a text between its special tokens


def write_gguf(
    model: Model,
    family: Family,
    tokenizer: Tokenizer | None,
    file: Path,
    template: ChatTemplate | None = None,
    special: Mapping[str, Any] = MappingProxyType({}),
    type: str | None = None,
    allow_different_tokens: bool = False,
) -> None:
    """Write a model with its tokenizer and chat template to a GGUF file, and verify the file.

    Args:
        model: model in float32, float16 or bfloat16, or quantized to 8 or 4 bits (stored unchanged as q8_0 or q4_0).
        tokenizer: tokenizer to store. With None, the file has no vocabulary and only accepts token ids.
        special: ids of the end, padding and decoder start tokens, keyed by their names in config.json.
        type: file type, such as bf16 or q4_k_m (default: the model's dtype).
        allow_different_tokens: warn, instead of refusing, if llama.cpp tokenizes some text differently.

    Raises:
        CheckpointError: llama.cpp does not support a field, or the type is unknown.
        DataError: gguf is not installed, or the tokenizer cannot be written as GGUF.
    """
    library = gguf_library()
    spec = as_mean(model.spec)
    target = gguf_of(family.name, spec)
    keys = keys_of(target, spec)
    type = type or own_type(model)
    if not type:
        raise CheckpointError(
            "dtype", "GGUF cannot store the model's dtype", "use --dtype float32, float16 or bfloat16"
        )
    check_file_type(type)
    writer = library.GGUFWriter(file, target.architecture)
    for name, value in (keys | numbers_of_layers(model, target)).items():
        # keys of the tokenizer belong to no architecture
        _put(writer, name if name.startswith(OUTSIDE) else f"{target.architecture}.{name}", value)
    if (start := special.get("decoder_start_token_id")) is not None:
        writer.add_decoder_start_token_id(start)
    writer.add_name(model.spec.name or family.name)
    writer.add_file_type(library.LlamaFileType[f"{'ALL' if type == 'f32' else 'MOSTLY'}_{type.upper()}"])
    if FILE_TYPES[type] not in NUMBERS:
        writer.add_quantization_version(library.GGML_QUANT_VERSION)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        vocab = vocabulary(tokenizer, model.spec.vocab_size)  # type: ignore[union-attr]
        check_ids(tokenizer, vocab, allow_different_tokens)
        prompt_ids = tokenizer.add_special_tokens([TEXT])
        if isinstance(model.spec, EncoderDecoder) and tokenizer.eos and prompt_ids[-1] not in tokenizer.eos:
            prompt_ids = [*prompt_ids, tokenizer.eos[0]]  # the encoder's input always ends with eos
        _put_vocabulary(writer, tokenizer, vocab, special, prompt_ids[-1] != TEXT)
    if template is not None:
        templates = {"default": template.source, **template.named}
        named = [{"name": name, "template": source} for name, source in templates.items() if source]
        # a list of named templates, or a single text
        writer.add_chat_template(named if template.named else template.source)
    types = tensor_types(file_shapes(spec, target), type, Facts.of(target.architecture, keys))
    tensors = gguf_tensors(model, target, type, types)
    for name, stored in tensors.items():
        _put_tensor(writer, library, name, stored)
    with system_errors(file):
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
    _compare(file, tensors)
    if tokenizer is not None:
        for cause in _differing_prompts(file, tokenizer, prompt_ids):
            report_difference(cause, allow_different_tokens)


def _put(writer: Any, key: str, value: Value) -> None:
    match value:
        # before int, since a bool is an int in Python
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case Wide():
            kinds = gguf_library().GGUFValueType
            writer.add_key_value(key, value, kinds.ARRAY, sub_type=kinds.UINT64)
        case list():
            writer.add_array(key, value)


def _put_tensor(writer: Any, library: Any, name: str, stored: Stored) -> None:
    kind, data = stored
    # NumPy has no bfloat16, and blocks are bytes anyway
    array = data.numpy() if kind in ("f32", "f16", "i32") else data.view(torch.uint8).numpy()
    writer.add_tensor(name, array, raw_dtype=library.GGMLQuantizationType[kind.upper()])


def _put_vocabulary(
    writer: Any, tokenizer: Tokenizer, vocab: Vocabulary, config: Mapping[str, Any], ends: bool
) -> None:
    writer.add_tokenizer_model(vocab.model)
    if vocab.pre is not None:
        writer.add_tokenizer_pre(vocab.pre)
    writer.add_token_list(vocab.tokens)
    writer.add_token_types(vocab.types)
    if vocab.scores is not None:
        writer.add_token_scores(vocab.scores)
    if vocab.merges is not None:
        writer.add_token_merges(vocab.merges)
    if vocab.charsmap:
        writer.add_precompiled_charsmap(vocab.charsmap)
    # llama.cpp stops at eos, which templates print, and at eot, a second token that ends a reply
    eos, turn = [*dict.fromkeys((*tokenizer.eos[:1], *config.get("eos_token_id", ()), *tokenizer.eos)), None, None][:2]
    ids = {"bos": tokenizer.bos, "eos": eos, "eot": turn, "padding": config.get("pad_token_id")} | vocab.special
    for role, id in ids.items():
        if id is not None:
            writer.add_uint32(f"{PREFIX}.{role}_token_id", id)
    flags = {
        "add_bos_token": tokenizer.adds_bos or "bos" in vocab.special,
        "add_eos_token": ends and bool(tokenizer.eos),  # after the input of an encoder
    } | vocab.flags
    for name, value in flags.items():
        writer.add_bool(f"{PREFIX}.{name}", value)


def _compare(file: Path, tensors: dict[str, Stored]) -> None:
    read = read_header(file).entries
    if read.keys() != tensors.keys():
        raise CheckpointError(str(file), "does not contain the tensors that were written", "check the disk, try again")
    for name, (kind, data) in tensors.items():
        entry, written = read[name], data.reshape(-1).view(torch.uint8).numpy()
        stored = np.memmap(file, np.uint8, "r", entry.offset, entry.num_bytes)
        if entry.type != kind.upper() or not np.array_equal(stored, written):
            raise CheckpointError(name, "reads back differently than it was written", "check the disk, try again")


def _differing_prompts(file: Path, tokenizer: Tokenizer, prompt_ids: list[int]) -> Iterator[str]:
    # `row`: special tokens around a text, whose own ids are `TEXT`
    keys = read_header(file).metadata
    read = read_tokenizer(keys, str(file))
    assert read is not None
    if not tokenizer.eos:
        read.eos = ()  # llama.cpp stops at tokens of known names, regardless of the keys
    yield from differing_ends(tokenizer, read, FILE)
    before, after = (
        [keys[f"{PREFIX}.{role}_token_id"]] if keys.get(f"{PREFIX}.add_{role}_token") else [] for role in ("bos", "eos")
    )
    if prompt_ids not in ([*before, TEXT, *after], again := read.add_special_tokens([TEXT])):
        shown = (", ".join("the text" if id == TEXT else str(id) for id in ids) for ids in (prompt_ids, again))
        yield f"a prompt is encoded as {next(shown)}, but with GGUF's keys as {next(shown)}"
