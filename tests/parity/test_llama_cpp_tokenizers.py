"""The same ids as llama.cpp from the vocabularies in exported GGUF files, where it is installed."""

import ctypes
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf import file as gguf
from archetype.convert.gguf.header import read_header
from archetype.convert.gguf.tokenizer import read_chat_template, read_tokenizer
from archetype.families.bert import bert
from archetype.families.llama import llama
from archetype.families.t5 import t5
from archetype.models.build import build
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.rwkv import RWKVTokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer, read_settings

TEXT = """The small cat sleeps on the warm stone in front of the house, where it sleeps every day.
Who has taken the bread that was lying on the table this morning? It was the neighbour's dog!
Élodie walked along the café's river until it was dark; then she went home (slowly) at 9.30.
"""
TEXTS = [
    "The small cat sleeps.",
    "  The   cat  ",
    "the cat\twas\nlying, dark;",
    "Élodie's CAFÉ (9.30)",
    "the 猫 sleeps 犬",
    "zyxwv qqq the",
    "naïve cafe\u0301 ﬁne ｃａｔ",
    "it's \\x41 \"'\n\n\0",
    "",
]


@cache
def pieces(kind: str, **settings: str) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=file, vocab_size=110, model_type=kind, pad_id=0,
        eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, minloglevel=2, **settings,
    )  # fmt: skip
    return file.getvalue()


def unigram(joined: bool) -> HuggingFaceTokenizer:
    """As T5's folders have it; or with spaces joined before the words are cut, as later ones."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces("unigram"))
    vocabulary = [(processor.id_to_piece(id), processor.get_score(id)) for id in range(processor.vocab_size())]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=2))
    charsmap = read_settings(pieces("unigram")).charsmap
    assert isinstance(charsmap, bytes)
    rules = normalizers.Precompiled(charsmap)
    spaces = pre_tokenizers.Metaspace(prepend_scheme="always")
    if joined:
        pattern = tokenizers.Regex(" {2,}")
        steps = [rules, normalizers.Strip(left=False), normalizers.Replace(pattern, "▁")]
        backend.normalizer, backend.pre_tokenizer = normalizers.Sequence(steps), spaces
    else:
        backend.normalizer = rules
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    backend.add_special_tokens(["<pad>", "</s>", "<extra_id_0>"])
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return HuggingFaceTokenizer(backend.to_str().encode())


def wordpiece(**settings: Any) -> HuggingFaceTokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = (
        normalizers.BertNormalizer(**settings),
        pre_tokenizers.BertPreTokenizer(),
    )
    backend.train_from_iterator(
        [TEXT], trainers.WordPieceTrainer(vocab_size=150, special_tokens=names, show_progress=False)
    )
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return HuggingFaceTokenizer(backend.to_str().encode(), {"cls_token": "[CLS]", "sep_token": "[SEP]"})


def whole_texts() -> HuggingFaceTokenizer:
    """As Gemma's: spaces are ▁, nothing is cut, runs of newlines are tokens."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=names, show_progress=False)
    backend.train_from_iterator(TEXT.splitlines(), trainer)
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    definition = json.loads(backend.to_str())
    model, runs = definition["model"], ["\n" * length for length in range(1, 9)]
    model["vocab"] |= {run: len(model["vocab"]) + index for index, run in enumerate(runs)}
    model["merges"] += [[first, second] for first in runs for second in runs if first + second in runs]
    definition["added_tokens"] = definition["added_tokens"][:4]
    return HuggingFaceTokenizer(json.dumps(definition).encode(), {"bos_token": "<bos>", "eos_token": "<eos>"})


def longest_match() -> RWKVTokenizer:
    words = (word.encode() for word in re.findall(r" ?\w+", TEXT))
    awkward = (b"\n\n", "é".encode()[:1] + b"l", b"it's", b"'\"", b"\\x")
    tokens = dict.fromkeys((*(bytes((byte,)) for byte in range(256)), *words, *awkward))
    return RWKVTokenizer(dict(enumerate(tokens, start=1)))


DECODER = llama(num_layers=1, d_model=32, num_heads=2, d_ff=32, vocab_size=400, context_length=64)
PAIR = t5(num_layers=1, d_model=32, num_heads=2, head_dim=16, d_ff=32, vocab_size=300, context_length=64)
ENCODER = bert(
    num_layers=1, d_model=32, num_heads=2, vocab_size=300, context_length=64, head=spec.NoHead(), pooler=True
)
MAKERS: dict[str, tuple[Any, spec.ModelSpec]] = {
    "tokenizer.model, unigram": (lambda: SentencePieceTokenizer(pieces("unigram")), PAIR),
    "tokenizer.json, unigram": (lambda: unigram(joined=False), PAIR),
    "tokenizer.json, unigram, spaces joined": (lambda: unigram(joined=True), PAIR),
    "tokenizer.json, BPE of whole texts": (whole_texts, DECODER),
    "rwkv": (longest_match, DECODER),
    "wordpiece": (wordpiece, ENCODER),
    "wordpiece, cased": (lambda: wordpiece(lowercase=False), ENCODER),
}


@pytest.mark.parametrize("name", MAKERS)
def test_ids(c: Any, name: str, tmp_path: Path) -> None:
    make, model_spec = MAKERS[name]
    tokenizer: Tokenizer = make()
    export(LanguageModel(model_spec, build(model_spec), tokenizer), tmp_path / "out", format="gguf")
    settings = c.llama_model_default_params()
    settings.vocab_only = True
    model = c.llama_model_load_from_file(str(tmp_path / "out" / gguf.FILE).encode(), settings)
    vocabulary = c.llama_model_get_vocab(model)
    for text in TEXTS:
        for whole in (False, True):
            ids = (c.llama_token * 200)()
            count = c.llama_tokenize(vocabulary, text.encode(), len(text.encode()), ids, 200, whole, False)
            expected = tokenizer.encode(text)
            if whole:
                expected = (
                    [*expected, tokenizer.eos[0]] if model_spec is PAIR else tokenizer.add_special_tokens(expected)
                )
            assert ids[:count] == expected, (text, whole)
    c.llama_model_free(model)
    read = read_tokenizer(read_header(tmp_path / "out" / gguf.FILE).metadata, "file")
    assert read is not None and [read.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


def test_a_template_that_a_file_only_names_is_llama_cpps(c: Any) -> None:
    talk = [("system", " Be short. "), ("user", "Hi\n"), ("assistant", " Well,\nhello. "), ("user", "2 + 2?")]
    messages = (c.llama_chat_message * 4)(*(c.llama_chat_message(*(part.encode() for part in turn)) for turn in talk))
    theirs = ctypes.create_string_buffer(1000)
    for length, is_asked in ((2, True), (3, False), (4, True)):
        size = c.llama_chat_apply_template(b"rwkv-world", messages, length, is_asked, theirs, 1000)
        template = read_chat_template({"tokenizer.chat_template": "rwkv-world"}, None)
        assert template is not None
        ours = template.render([{"role": role, "content": text} for role, text in talk[:length]], is_asked)
        assert ours.encode() == theirs.raw[:size]
