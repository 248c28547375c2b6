"""Tokenizers read from GGUF files give the ids of those that were written, and what has no such form is refused."""

import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.convert.gguf import file as gguf
from archetype.convert.gguf.header import read_header
from archetype.convert.gguf.pretokenizers import CLOSE, CUTS, GPT2
from archetype.convert.gguf.tokenizer import read_chat_template, read_tokenizer
from archetype.errors import DataError, Notice
from archetype.families.bert import bert
from archetype.families.llama import llama
from archetype.families.t5 import t5
from archetype.models.build import build
from archetype.spec import NoHead
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.rwkv import RWKVTokenizer
from archetype.tokenizers.sentencepiece import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    Piece,
    SentencePieceTokenizer,
    read_pieces,
    read_settings,
    write_model,
)
from tests.helpers.examples import every
from tests.parity.test_llama_cpp_tokenizers import TEXT, longest_match, pieces, unigram, wordpiece

SIZES: dict[str, Any] = dict(num_layers=1, d_model=8, num_heads=2, d_ff=8, context_length=64)


@cache
def trained(kind: str, **settings: Any) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=file, vocab_size=380, model_type=kind,
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2, **settings,
    )  # fmt: skip
    return file.getvalue()


def llama_like(**settings: Any) -> SentencePieceTokenizer:
    """As Llama's and Gemma's are trained: no rules, spaces kept."""
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    return SentencePieceTokenizer(trained("bpe", **plain | settings))


def gemma_like() -> SentencePieceTokenizer:
    """Without a prefix, and with symbols of spaces that score worse than the pieces that begin with one."""
    tokenizer = llama_like(add_dummy_prefix=False, user_defined_symbols=",".join("\u2581" * n for n in range(2, 9)))
    worse = [piece._replace(score=-1000.0) if piece.type == USER_DEFINED else piece for piece in tokenizer.pieces]
    special = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
    return SentencePieceTokenizer(write_model(worse, tokenizer.settings, special))


def cut_as(patterns: tuple[str, ...]) -> HuggingFaceTokenizer:
    """Byte-level BPE with the cuts of published patterns, one after the other."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    definition = json.loads(json.dumps(tokenizer.definition))
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": one}, "behavior": "Isolated", "invert": False} for one in patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, level]}
    definition["added_tokens"].append(
        {"id": tokenizer.vocab_size, "content": "<|more|>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False}
    )  # fmt: skip
    return HuggingFaceTokenizer(json.dumps(definition).encode())


def like_roberta() -> HuggingFaceTokenizer:
    """Whose mask takes the spaces before it; texts have a token at each end."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    definition = json.loads(json.dumps(tokenizer.definition).replace("<|endoftext|>", "<pad>"))
    first = tokenizer.vocab_size
    for id, name in enumerate(("<s>", "</s>", "<mask>"), start=first):
        definition["added_tokens"].append(
            {"id": id, "content": name, "single_word": False, "lstrip": name == "<mask>", "rstrip": False,
             "normalized": False, "special": True}
        )  # fmt: skip
    definition["post_processor"] = {
        "type": "RobertaProcessing", "sep": ["</s>", first + 1], "cls": ["<s>", first], "trim_offsets": True,
        "add_prefix_space": False,
    }  # fmt: skip
    return HuggingFaceTokenizer(json.dumps(definition).encode(), {"bos_token": "<s>", "eos_token": "</s>"})


SYMBOLS = {"user_defined_symbols": "<mine>,\u2581\u2581,hou", "pad_id": 3}
TOKENIZERS: dict[str, Any] = {
    "bytes": lambda: train_tokenizer("bytes", "", None),
    "byte-level": lambda: train_tokenizer("byte_bpe", TEXT, 300),
    **{name: lambda cut=cut: cut_as(cut) for name, cut in CUTS.items() if name not in (GPT2, *CLOSE)},
    "encoder like roberta": like_roberta,
    "sentencepiece": llama_like,
    "sentencepiece without a prefix": lambda: llama_like(add_dummy_prefix=False),
    "sentencepiece with symbols": lambda: llama_like(add_dummy_prefix=False, **SYMBOLS),
    "sentencepiece with symbols of spaces": lambda: llama_like(user_defined_symbols="\u2581\u2581,\u2581\u2581\u2581"),
    "sentencepiece with symbols of spaces that score low": gemma_like,
    "unigram": lambda: SentencePieceTokenizer(pieces("unigram")),
    "unigram with symbols": lambda: SentencePieceTokenizer(pieces("unigram", user_defined_symbols="<mine>,hou")),
    "unigram of tokenizer.json": lambda: unigram(joined=True),
    "rwkv": longest_match,
    "wordpiece": lambda: wordpiece(lowercase=True),
    "wordpiece with case": lambda: wordpiece(lowercase=False, strip_accents=True),
}


def model_for(name: str) -> Any:
    if name.startswith("unigram"):
        return t5(**SIZES, head_dim=4, vocab_size=400)
    if name.startswith(("wordpiece", "encoder")):
        return bert(**SIZES, head=NoHead(), vocab_size=400)
    return llama(**SIZES, vocab_size=400)


@pytest.mark.parametrize("name", every(4, TOKENIZERS))
def test_ids_texts_and_keys_come_back(tmp_path: Path, name: str) -> None:
    tokenizer: Tokenizer = TOKENIZERS[name]()
    model = build(model_for(name))
    family = "bert" if name.startswith(("wordpiece", "encoder")) else None
    lm = LanguageModel(model.spec, model, tokenizer, template=ChatTemplate("{{ bos_token }}{{ messages }}", {}))
    export(lm, tmp_path / "out", family, format="gguf")
    read = load(tmp_path / "out" / gguf.FILE)
    assert read.tokenizer is not None and read.template is not None
    assert read.template.source == "{{ bos_token }}{{ messages }}"
    decodes = getattr(tokenizer, "definition", {"decoder": True})["decoder"] is not None
    for text in (*AWKWARD_TEXTS, TEXT, "a <mine> house <|more|> [SEP] </s> <|endoftext|>  <mask>s"):
        ids = tokenizer.encode_with_special_tokens(text)
        assert read.tokenizer.encode_with_special_tokens(text) == ids, text
        assert read.tokenizer.decode(ids) == tokenizer.decode(ids) or not decodes, text
    assert read.tokenizer.add_special_tokens([5]) == tokenizer.add_special_tokens([5]) or name.startswith("unigram")
    assert (read.tokenizer.bos, read.tokenizer.eos, read.tokenizer.adds_bos) == (
        tokenizer.bos if not name.startswith("wordpiece") else tokenizer.add_special_tokens([])[0],
        tokenizer.eos, tokenizer.adds_bos,
    )  # fmt: skip
    export(read, tmp_path / "again", read.family.name if read.family else None, format="gguf")
    first, again = (read_header(tmp_path / folder / gguf.FILE).metadata for folder in ("out", "again"))
    assert dict(again) == dict(first)


REFUSED = {
    "rules": lambda: SentencePieceTokenizer(trained("bpe")),
    "joined spaces": lambda: llama_like(remove_extra_whitespaces=True),
    "no bytes": lambda: SentencePieceTokenizer(pieces("bpe")),
    "symbols, behind which llama.cpp puts a space": lambda: llama_like(**SYMBOLS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_cut_otherwise_is_not_written(tmp_path: Path, name: str) -> None:
    model = build(model_for(name))
    with pytest.raises(DataError, match=r"llama\.cpp"):
        export(LanguageModel(model.spec, model, REFUSED[name]()), tmp_path / "out", format="gguf")
    assert not (tmp_path / "out").exists()


def test_texts_that_llama_cpp_cuts_otherwise_are_written_where_that_is_asked_for(tmp_path: Path) -> None:
    """As BERT's: its file removes the marks without a width, and llama.cpp all of them."""
    definition = json.loads(json.dumps(wordpiece(lowercase=True).definition))
    definition["model"]["vocab"]["\u0926\u0928\u093f\u092f\u093e"] = 150  # the second word, without its first vowel
    tokenizer = HuggingFaceTokenizer(json.dumps(definition).encode(), {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    model = build(model_for("wordpiece"))
    lm = LanguageModel(model.spec, model, tokenizer)
    with pytest.raises(DataError) as caught:
        export(lm, tmp_path / "out", "bert", format="gguf")
    assert re.fullmatch(
        r"tokenizer: llama.cpp encodes '.+' differently: from id \d+ on [\d, ]+ instead of [\d, ]+; "
        "use --format hf, or --allow-different-tokens to write it so", str(caught.value),
    )  # fmt: skip
    with pytest.warns(Notice, match="tokenizer: llama.cpp encodes .* differently") as noticed:
        export(lm, tmp_path / "out", "bert", format="gguf", allow_different_tokens=True)
    assert len(noticed) == 1 and (tmp_path / "out" / gguf.FILE).is_file()


def test_a_difference_that_nobody_foresaw_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the comparison before a file is written."""
    tokenizer = train_tokenizer("byte_bpe", TEXT, 300)
    model = build(model_for(""))
    monkeypatch.setattr(type(tokenizer), "encode_with_special_tokens", lambda self, text: [1, 2])
    with pytest.raises(DataError, match=r"llama.cpp encodes '' differently"):
        export(LanguageModel(model.spec, model, tokenizer), tmp_path / "out", format="gguf")


def test_a_sentencepiece_model_is_written_as_its_library_reads_it() -> None:
    for data in (trained("unigram"), trained("bpe", user_defined_symbols="<mine>")):
        ours = read_pieces(data)
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        assert [piece.text for piece in ours] == [processor.id_to_piece(id) for id in range(len(ours))]
        assert [piece.score for piece in ours] == [processor.get_score(id) for id in range(len(ours))]
        again = write_model(ours, read_settings(data), {"unk": "<unk>", "bos": "<s>", "eos": "</s>"})
        assert read_pieces(again) == ours and read_settings(again) == read_settings(data)
        other = sentencepiece.SentencePieceProcessor(model_proto=again)
        assert (other.bos_id(), other.eos_id(), other.unk_id(), other.pad_id()) == (1, 2, 0, -1)
        for text in AWKWARD_TEXTS:
            if "\0" not in text:
                assert other.encode(text) == processor.encode(text)
    assert Piece("<mine>", 0.0, 4) in ours


VOCABULARY = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b"], "merges": []}
WRONG: dict[str, dict[str, Any]] = {
    "a model": {"model": "rwkv"},
    "a cut": {"pre": "unheard"},
    "no tokens": {"tokens": None},
    "tokens that are numbers": {"tokens": [1, 2]},
    "one twice": {"tokens": ["a", "a"]},
    "too few types": {"token_type": [1]},
    "an id beyond": {"eos_token_id": 2},
    "an id of no kind": {"bos_token_id": "a"},
    "a key that nobody knows": {"reverses_texts": True},
    "no scores": {"model": "llama"},
    "none for what is unknown": {"model": "llama", "scores": [0.0, 0.0]},
    "none around a text": {"model": "bert"},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_vocabulary_is_said_in_a_line(name: str) -> None:
    keys = {f"tokenizer.ggml.{key}": value for key, value in (VOCABULARY | WRONG[name]).items()}
    with pytest.raises(DataError) as caught:
        read_tokenizer(keys, "m.gguf")
    assert str(caught.value).startswith("m.gguf: ") and "\n" not in str(caught.value), caught.value
    assert read_tokenizer({f"tokenizer.ggml.{key}": value for key, value in VOCABULARY.items()}, "m.gguf") is not None
    assert read_tokenizer({}, "m.gguf") is None


def test_a_file_of_llama_cpps_converter_names_rwkvs_template_and_two_ends() -> None:
    written = longest_match().tokens
    tokens = ["<s>", *(repr(token)[2:-1] for token in written.values())]
    keys = {
        "tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, *[NORMAL] * len(written)], "tokenizer.chat_template": "rwkv-world",
        **{f"tokenizer.ggml.{role}_token_id": id for role, id in (("bos", 0), ("eos", 0), ("eot", 261))},
    }  # fmt: skip
    read = read_tokenizer(keys, "a.gguf")
    assert isinstance(read, RWKVTokenizer) and read.tokens == written
    assert (read.bos, read.eos, read.adds_bos) == (0, (0, 261), False)
    template = read_chat_template(keys, read)
    assert template is not None
    assert template.render([{"role": "user", "content": " Hi "}], True) == "User: Hi\n\nAssistant:"
    assert read_chat_template(keys | {"tokenizer.chat_template": "of-another-program"}, read) is None
