"""Long texts by their words: the ids are those of the library, whatever the characters are."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from archetype.data.corpus import encode
from archetype.tokenizers import word_cache
from archetype.tokenizers.bpe import ByteBPE, CharacterBPE
from archetype.tokenizers.hugging_face import LONG, HuggingFaceTokenizer
from archetype.tokenizers.tiktoken import CL100K, LLAMA3, O200K
from archetype.tokenizers.word_cache import WordCache, word_pattern

SENTENCES = (
    "The cat's 3 kittens don't sleep;  they'LL play.\n", "Ä, übergroße Straßen — 12½ km!\r\n", "Слово за словом.\n\n",
    "東京は\u3000雨。\t", "ſtrange K\u0301 l\u0301\n", "🙂👍🏽 ok <|end|>  \x1c\x85\x0b", "x\u200b\u180ey\u2028z\xa0",
    "٣٤ Ⅷ ²³\n",
)  # fmt: skip
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def trained_on_words(pre_tokenizer: Any) -> HuggingFaceTokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizer, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    return HuggingFaceTokenizer(backend.to_str().encode())


def split_by(pattern: str) -> Any:
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


TOKENIZERS = {
    "gpt2": trained_on_words(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": trained_on_words(split_by(LLAMA3)),
    "qwen2": trained_on_words(split_by(QWEN2)),
    "o200k": trained_on_words(split_by(O200K)),
    "bpe": CharacterBPE.train([*SENTENCES[:3], "<|end|>"], 200, False),
}


def library(tokenizer: HuggingFaceTokenizer, text: str) -> list[int]:
    return list(tokenizer.backend.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(parts=st.lists(st.sampled_from(SENTENCES) | st.text(max_size=20), min_size=1, max_size=8), plain=st.booleans())
def test_ids_are_those_of_the_library(name: str, parts: list[str], plain: bool) -> None:
    tokenizer = TOKENIZERS[name]
    before = "All that is known of cats is 9 lives long.\n" * 30 if plain else ""
    text = before + "".join(parts)
    text = (text * (LONG // len(text) + 1)) if text else "a" * LONG
    assert tokenizer.encode(text) == library(tokenizer, text)


CONTENTS = ("<t>", "\n", "x\ny", "\nq", "q\n", " of", "cats", "é", "\t\t", "<T> ", "🙂")
FLAGS = st.fixed_dictionaries(
    {name: st.booleans() for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
)


@given(
    tokens=st.dictionaries(st.sampled_from(CONTENTS), FLAGS, min_size=1, max_size=3),
    parts=st.lists(
        st.sampled_from((*CONTENTS, *SENTENCES, "\n", " ", "  ", "all cats", "x", "y", "q")), min_size=1, max_size=12
    ),
    name=st.sampled_from(["gpt2", "qwen2"]),
)
def test_added_tokens_are_found_as_by_the_library(
    tokens: dict[str, dict[str, bool]], parts: list[str], name: str
) -> None:
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS[name].backend.to_str())
    backend.add_tokens([tokenizers.AddedToken(content, **flags) for content, flags in tokens.items()])
    tokenizer = HuggingFaceTokenizer(backend.to_str().encode())
    before = "All that is known of 9 lives\n" * (LONG // 29 + 1)
    for text in (before + "".join(parts), "".join(parts) + before, before + "".join(parts) + before):
        assert tokenizer.encode(text) == library(tokenizer, text)
        assert encode(tokenizer, text, 100).tolist() == library(tokenizer, text)  # in chunks, as data are tokenized


@pytest.mark.parametrize("name", ["gpt2", "llama3", "qwen2", "o200k"])
def test_words_are_looked_up_where_their_characters_are_certain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS[name]
    asked: list[str] = []
    cache = tokenizer._word_cache
    assert cache is not None
    monkeypatch.setattr(cache, "_library", lambda text: asked.append(text) or library(tokenizer, text))
    certain = "".join(SENTENCES[:4]) * 100
    assert tokenizer.encode(certain) == library(tokenizer, certain) and not asked
    text = certain + "a new face: 🙂, and\nmore words\n" + certain
    assert tokenizer.encode(text) == library(tokenizer, text)
    assert len(asked) == 1 and "🙂" in asked[0] and len(asked[0]) < len(text) / 2  # the lines around it alone
    asked.clear()
    text = "one line " * 1000 + "<|end|>"  # no line end to cut at
    assert tokenizer.encode(text) == library(tokenizer, text) and asked == [text]


def test_no_more_words_are_known_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_cache, "MAX_WORDS", 10)
    tokenizer = TOKENIZERS["gpt2"]
    pattern = word_pattern(tokenizer.definition)
    assert pattern is not None
    cache = WordCache(pattern, (), (), lambda text: library(tokenizer, text))
    for number in range(5):
        text = " ".join(f"{word}{number}" for word in ("some", "new", "words"))
        assert cache.encode(text) == library(tokenizer, text)
        assert len(cache._ids) <= 10 + 6


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a normalizer": lambda definition: definition.update(normalizer={"type": "NFC"}),
    "merges dropped by chance": lambda definition: definition["model"].update(dropout=0.1),
    "a space before": lambda definition: definition["pre_tokenizer"].update(add_prefix_space=True),
    "another pre-tokenizer": lambda definition: definition.update(pre_tokenizer={"type": "Whitespace"}),
    "none": lambda definition: definition.update(pre_tokenizer=None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_files_are_left_to_the_library(change: str) -> None:
    definition = json.loads(TOKENIZERS["gpt2"].backend.to_str())
    assert word_pattern(definition) is not None
    CHANGES[change](definition)
    assert word_pattern(definition) is None


@pytest.mark.parametrize(
    "pattern",
    [
        CL100K,
        r"\w+|\W+",
        r"(a)|b",
        r"(?<=a)b",
        r"a(?=b)",
        r"[[:alpha:]]+",
        r"[a&&b]",
        r"\p{Han}+",
        r"a.b",
        r"^a",
        "[",
        r"(?:a+)+b",
    ],
)
def test_patterns_that_python_may_read_otherwise_are_left_to_the_library(pattern: str) -> None:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    assert word_pattern({"model": {}, "pre_tokenizer": split}) is None


def test_a_tokenizer_of_ours_is_read_by_words() -> None:
    assert word_pattern(ByteBPE.train(["the cat sat on the mat. " * 50], 300, False).definition) is not None
