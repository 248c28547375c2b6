"""Where texts begin and end by a GGUF file's own keys, for every combination, read back by the `gguf` package."""

from pathlib import Path
from typing import Any

import gguf

from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf import file as ours
from archetype.models.build import build
from archetype.models.spec import ModelSpec
from archetype.tokenizers import Tokenizer, train_tokenizer
from tests.helpers.cases import case
from tests.unit.convert.test_gguf import value, written
from tests.unit.convert.test_gguf_metadata import CONFIGS, model_of


def flags(tokenizer: Tokenizer, folder: Path, model: ModelSpec) -> dict[str, Any]:
    """What a file says of its tokenizer, but for the vocabulary."""
    fields = written(build(model), folder, tokenizer).fields
    names = ("add_bos_token", "add_eos_token", "bos_token_id", "eos_token_id", "eot_token_id", "padding_token_id")
    return {name: fields[f"tokenizer.ggml.{name}"].contents() for name in names if f"tokenizer.ggml.{name}" in fields}


def test_where_texts_begin_and_end(tmp_path: Path) -> None:
    """The tokens that start and end a text, and whether they are added: all combinations."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 48}  # fmt: skip
    decoder = model_of(CONFIGS["llama-2-7b"] | sizes)
    pair = model_of(
        CONFIGS["t5-small"]
        | {"d_model": 64, "d_ff": 96, "num_layers": 1, "num_heads": 2, "d_kv": 32, "vocab_size": 300}
    )
    number = 0
    for model, ends in ((decoder, False), (pair, True)):
        for bos, adds_bos in ((None, False), (7, False), (7, True)) if model is decoder else ((None, False),):
            for eos in ((), (9,), (9, 11)):
                tokenizer = train_tokenizer("byte_bpe", "hello hello world " * 9, 280)
                tokenizer.bos, tokenizer.eos, tokenizer.adds_bos = bos, eos, adds_bos
                numbers = {"add_bos_token": adds_bos, "add_eos_token": ends and bool(eos)}
                numbers |= {} if bos is None else {"bos_token_id": bos}
                numbers |= dict(zip(("eos_token_id", "eot_token_id"), eos, strict=False))
                number += 1
                with case(model.kind, bos, adds_bos, eos):
                    assert flags(tokenizer, tmp_path / str(number), model) == numbers


def test_the_tokens_that_start_and_pad_a_target(tmp_path: Path) -> None:
    """As the model's files name them; where they name none, the one that ends a text, as it was trained."""
    sizes = {"d_model": 64, "d_ff": 96, "num_layers": 1, "num_heads": 2, "d_kv": 32, "vocab_size": 300}
    pair, tokenizer = model_of(CONFIGS["t5-small"] | sizes), train_tokenizer("byte_bpe", "hello world " * 9, 280)
    tokenizer.eos = (9, 11)
    for special, start, padding in (
        ({"decoder_start_token_id": 7, "pad_token_id": 12}, 7, 12),
        ({"decoder_start_token_id": 0, "pad_token_id": 0}, 0, 0),
        ({}, 9, None),
    ):
        with case(special):
            folder = tmp_path / f"{start} {padding}"
            export(LanguageModel(pair, build(pair), tokenizer, special=special), folder, format="gguf")
            file = gguf.GGUFReader(folder / ours.FILE)
            assert value(file, "t5.decoder_start_token_id") == start
            field = file.get_field("tokenizer.ggml.padding_token_id")
            assert (None if field is None else field.contents()) == padding
