"""Ids equal to each library's own, on any text."""

import base64
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
import tokenizers
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from archetype.tokenizers import open_tokenizer, train_tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from archetype.tokenizers.tiktoken import CL100K, GPT2, LLAMA3, MOST_SPACES, O200K, TiktokenTokenizer
from tests.helpers.examples import examples

TEXT = "the cat sat on the mat, and then the other cat sat there; Überraschung 東京 😀!\n" * 5
fuzz = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
# each is made once: a test compares hundreds of texts
opened = cache(lambda kind, data: kind(data))
processor = cache(lambda data: sentencepiece.SentencePieceProcessor(model_proto=data))
library = cache(lambda data: tokenizers.Tokenizer.from_str(data.decode()))
BYTE_BPE = train_tokenizer("byte_bpe", TEXT, 320)
assert isinstance(BYTE_BPE, HuggingFaceTokenizer)
texts = st.text() | st.text(alphabet=" \n\taetT'é東😀1.,<|>s", max_size=60)


@fuzz
@given(text=texts)
def test_sentencepiece_on_a_published_model(shared: Path, text: str) -> None:
    data = (shared / "stories260K" / "tokenizer.model").read_bytes()
    ours, theirs = opened(SentencePieceTokenizer, data), processor(data)
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids)


def test_a_published_model_names_its_ends(shared: Path) -> None:
    tokenizer = open_tokenizer(shared / "stories260K")
    assert (tokenizer.kind, tokenizer.vocab_size) == ("sentencepiece", 512)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (1, (2,), True)
    assert tokenizer.special_tokens == {"<s>": 1, "</s>": 2}
    text = "Once upon a time, there was a little girl."
    assert tokenizer.decode([1, *tokenizer.encode(text), 2]) == text


@fuzz
@given(ids=st.lists(st.integers(0, 511)))
def test_a_published_model_streams_as_the_library_decodes(shared: Path, ids: list[int]) -> None:
    data = (shared / "stories260K" / "tokenizer.model").read_bytes()
    stream = opened(SentencePieceTokenizer, data).stream()
    streamed = "".join(map(stream.push, ids)) + stream.finish()
    assert streamed == processor(data).decode(ids)


@fuzz
@given(text=texts)
def test_byte_level_bpe(text: str) -> None:
    theirs = library(BYTE_BPE.backend.to_str().encode())
    assert BYTE_BPE.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def trained_with(model: object, trainer: object, **parts: object) -> bytes:
    backend = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(backend, name, part)
    backend.train_from_iterator([TEXT], trainer)
    return backend.to_str().encode()


LLAMA_LIKE = trained_with(
    models.BPE(unk_token="<unk>", byte_fallback=True),
    trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    ),
    normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    decoder=decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    post_processor=processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]),
)
BERT_LIKE = trained_with(
    models.WordPiece(unk_token="[UNK]"),
    trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False),
    normalizer=normalizers.BertNormalizer(),
    pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
    decoder=decoders.WordPiece(),
)
T5_LIKE = trained_with(
    models.Unigram(),
    trainers.UnigramTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False),
    pre_tokenizer=pre_tokenizers.Metaspace(),
    decoder=decoders.Metaspace(),
)


@fuzz
@given(text=texts)
def test_a_tokenizer_json(text: str) -> None:
    for data in (LLAMA_LIKE, BERT_LIKE, T5_LIKE):
        ours, theirs = opened(HuggingFaceTokenizer, data), library(data)
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False).ids, ours.kind
        assert ours.decode(ids) == theirs.decode(ids), ours.kind


def test_a_post_processor_that_puts_bos_first_is_noticed() -> None:
    llama = HuggingFaceTokenizer(LLAMA_LIKE)
    assert (llama.bos, llama.eos, llama.adds_bos, llama.kind) == (1, (2,), True, "bpe")
    assert llama.encode("the cat")[0] != llama.bos
    bert = HuggingFaceTokenizer(BERT_LIKE, {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    assert (bert.bos, bert.eos, bert.adds_bos, bert.kind) == (2, (3,), False, "wordpiece")


def test_truncation_and_padding_in_a_file_are_not_applied() -> None:
    backend = tokenizers.Tokenizer.from_str(BERT_LIKE.decode())
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    assert HuggingFaceTokenizer(backend.to_str().encode()).encode(TEXT) == HuggingFaceTokenizer(BERT_LIKE).encode(TEXT)


def ranks(count: int) -> dict[bytes, int]:
    """The 256 bytes, then all pairs and some triples of bytes, as many as asked for."""
    tokens = [bytes((byte,)) for byte in range(256)]
    tokens += [bytes((n // 256 % 256, n % 256)) + (b"x" if n >= 65536 else b"") for n in range(count - 256)]
    return {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}


def rank_file(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


@cache
def tiktoken_pair(pattern: str) -> tuple[TiktokenTokenizer, tiktoken.Encoding]:
    """Ours and theirs."""
    table, special = ranks(600), {"<|endoftext|>": 1000}
    ours = TiktokenTokenizer(rank_file(table), {"pattern": pattern, "special_tokens": special})
    return ours, tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=table, special_tokens=special)


@fuzz
@given(text=texts)
def test_tiktoken(text: str) -> None:
    for pattern in (GPT2, CL100K, O200K, LLAMA3):
        ours, theirs = tiktoken_pair(pattern)
        ids = ours.encode(text)
        assert ids == theirs.encode(text, disallowed_special=()), pattern
        assert ours.decode(ids) == theirs.decode(ids) == text, pattern


@pytest.mark.parametrize("count, vocab_size, eos", [(50_256, 50_257, (50_256,)), (100_256, 100_277, (100_257,))])
def test_openais_files_are_told_by_their_number_of_ranks(count: int, vocab_size: int, eos: tuple[int]) -> None:
    tokenizer = TiktokenTokenizer(rank_file(ranks(count)))
    assert (tokenizer.vocab_size, tokenizer.eos, tokenizer.adds_bos) == (vocab_size, eos, False)


def test_llama_3_is_told_by_its_number_of_ranks_under_sentencepieces_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(rank_file(ranks(128_000)))
    tokenizer = open_tokenizer(tmp_path)
    assert (tokenizer.kind, tokenizer.vocab_size) == ("tiktoken", 128_256)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (128_000, (128_001, 128_009), True)
    special = tokenizer.special_tokens
    assert (special["<|start_header_id|>"], special["<|end_header_id|>"]) == (128_006, 128_007)
    assert special["<|reserved_special_token_250|>"] == 128_255


def test_more_spaces_than_tiktoken_can_take() -> None:
    tokenizer = TiktokenTokenizer(rank_file(ranks(300)), {"pattern": LLAMA3})
    text = "a" + " " * (4 * MOST_SPACES + 5) + "b"
    assert tokenizer.decode(tokenizer.encode(text)) == text
