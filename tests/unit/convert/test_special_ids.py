"""The tokenizer says what begins and ends a prompt, the generation settings what ends a text, in all files written."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import archetype
from archetype.convert.gguf.file import FILE
from archetype.errors import Notice
from tests.helpers.cases import case

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
NAMES = ("<|bos|>", "<|eos|>", "<|other|>")  # 256, 257, 258
TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
TALK = [{"role": "user", "content": "Hi"}]
TEXT = 'say "hi" #1 "x"'


def published(folder: Path, ids: dict[str, Any], generation: dict[str, Any] | None, frame: str = "$A") -> Path:
    """A small Llama whose config.json, generation_config.json and tokenizer say different ids."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=320, num_key_value_heads=2, max_position_embeddings=64, **sizes, **ids)
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    backend = Tokenizer(models.BPE(vocab={character: id for id, character in enumerate(BYTES)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in NAMES])
    known = [(name, 256 + number) for number, name in enumerate(NAMES)]
    backend.post_processor = processors.TemplateProcessing(single=frame, pair=f"{frame} $B:1", special_tokens=known)
    backend.save(str(folder / "tokenizer.json"))
    said = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **said}))
    return folder


def read_by_transformers(folder: Path) -> tuple[Any, ...]:
    theirs = AutoTokenizer.from_pretrained(folder)
    text = theirs.decode(theirs.encode(TEXT), skip_special_tokens=True)
    return theirs(TEXT).input_ids, theirs.bos_token, theirs.eos_token, text, theirs.apply_chat_template(
        TALK, tokenize=False
    )  # fmt: skip


CASES = [
    ({"bos_token_id": 1, "eos_token_id": 2}, None, "<|bos|> $A", (2,)),
    ({"bos_token_id": 1, "eos_token_id": 2}, None, "$A", (2,)),
    ({"bos_token_id": 257, "eos_token_id": 257}, None, "<|bos|> $A <|eos|>", (257,)),  # RoBERTa with </s> as bos alike
    ({"bos_token_id": 256, "eos_token_id": 257}, {"eos_token_id": [258, 257]}, "$A", (258, 257)),
    ({"bos_token_id": None, "eos_token_id": None}, None, "<|other|> $A", (257,)),
    ({"bos_token_id": 1, "eos_token_id": 257}, {"eos_token_id": 258, "bos_token_id": 2}, "<|bos|> $A", (258,)),
]


@pytest.mark.parametrize(("ids", "generation", "frame", "ends"), CASES)
def test_they_stay_what_they_were(
    ids: dict[str, Any], generation: dict[str, Any] | None, frame: str, ends: tuple[int, ...], tmp_path: Path
) -> None:
    source = published(tmp_path / "source", ids, generation, frame)
    theirs = read_by_transformers(source)
    lm = archetype.load(source)
    lm.save(tmp_path / "run")
    archetype.export(lm, tmp_path / "out")
    archetype.export(archetype.load(tmp_path / "run"), tmp_path / "out of the run")
    for folder in ("source", "run", "out", "out of the run"):
        with case(folder):
            read = archetype.load(tmp_path / folder)
            assert read.tokenizer is not None and read.template is not None
            assert read.tokenizer.encode_prompt(TEXT) == theirs[0]
            assert (read.tokenizer.bos, read.tokenizer.eos, read.ends) == (256, (257,), ends)
            assert read.template.render(TALK, False) == theirs[4]
            if folder != "run":
                assert read_by_transformers(tmp_path / folder) == theirs
    with pytest.warns(Notice, match="with GGUF's keys") if "<|other|>" in frame else nullcontext():
        archetype.export(lm, tmp_path / "gguf", format="gguf", allow_different_tokens=True)
    fields = gguf.GGUFReader(tmp_path / "gguf" / FILE).fields
    names = ("bos_token_id", "eos_token_id", "eot_token_id")
    written = [fields[f"tokenizer.ggml.{name}"].contents() for name in names if f"tokenizer.ggml.{name}" in fields]
    assert written == [*dict.fromkeys((256, 257, *ends))][: len(written)] and {*ends} <= {*written[1:]}


def test_a_text_ends_where_the_generation_settings_say(tmp_path: Path) -> None:
    lm = archetype.load(published(tmp_path / "source", {"eos_token_id": 2}, {"eos_token_id": [258, 5]}))
    for token, reason in ((258, "stop"), (5, "stop"), (257, "length")):
        engine = lm.engine()
        engine.submit("abc", max_new_tokens=3, sequence_bias=[[[token], 100.0]])
        with case(token):
            assert [event.finish_reason for event in engine.events()][-1] == reason
