"""Added tokens are those that the `tokenizers` library adds: flags, ids, texts, and in files."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.fast import fast_definition
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.registry import tokenizer_class, trainable_kinds
from tests.helpers.cases import case

CORPUS = (
    "the cat sat on the mat, and a dog saw THE CAT sit there; wonder and under UNDER Cat sat  on\n"
    "b <think>< [note] thin k "
)
# a name in brackets is special; one in capitals, and one with which another begins
NAMES = ("<think>", "[note]", "er a", "T C", "<think", "sat on")
AROUND = [*product(("", "a", "the ", "  "), ("", "b", " cat", "  "))]
TEXTS = [
    *(f"{before}{name}{after}" for name in NAMES for before, after in AROUND), "".join(NAMES), " ".join(NAMES), "", " ",
    "wonder and UNDER AND CAT CAT cat cat er A t c", "<think>><think <thin k>", "the cat sat  on\nsat on",
]  # fmt: skip


def tokenizers_of_all_kinds() -> Iterator[tuple[str, Tokenizer]]:
    """Each kind that can be trained and takes tokens, as it is and with texts in lower case."""
    for kind in trainable_kinds():
        for lowercase in (False, True) if tokenizer_class(kind).can_lowercase else (False,):
            size = 300 if kind.endswith("bpe") else 70 if tokenizer_class(kind).learns_vocabulary else None
            tokenizer = train_tokenizer(kind, [CORPUS] * 9, size, lowercase)
            tokenizer.bos, tokenizer.adds_bos, tokenizer.eos = 3, True, (5,)
            if isinstance(tokenizer, HuggingFaceTokenizer) or fast_definition(tokenizer) is not None:
                yield f"{kind}{' in lower case' * lowercase}", tokenizer


def reference(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The library's own tokenizer with the same tokens added by its own functions."""
    definition = tokenizer.definition if isinstance(tokenizer, HuggingFaceTokenizer) else fast_definition(tokenizer)
    backend = tokenizers.Tokenizer.from_str(json.dumps(definition))
    for name in NAMES:
        if name[0] + name[-1] in ("<>", "[]"):
            backend.add_special_tokens([AddedToken(name, normalized=False, special=True)])
        else:
            backend.add_tokens([AddedToken(name, normalized=False)])
    return backend


def test_added_tokens_are_those_that_the_library_adds(tmp_path: Path) -> None:
    """Of every kind: their flags, the ids of texts in which they are, and their texts again."""
    seen = []
    for name, tokenizer in tokenizers_of_all_kinds():
        wider, theirs = add_tokens(tokenizer, NAMES), reference(tokenizer)
        folder = tmp_path / name
        folder.mkdir()
        wider.save(folder)
        reopened = open_tokenizer(folder)
        for one in (wider, reopened):
            with case(name, "reopened" if one is reopened else "new"):
                assert isinstance(one, HuggingFaceTokenizer)
                assert flags(one.backend) == flags(theirs)
                assert one.vocab_size == tokenizer.vocab_size + len(NAMES)
                assert (one.bos, one.adds_bos, one.eos) == (3, True, (5,))
                assert {*NAMES} & one.special_tokens.keys() == {"<think>", "[note]"}
        for text in TEXTS:
            with case(name, text):
                ids = theirs.encode(text, add_special_tokens=False).ids
                assert wider.encode(text) == ids
                assert wider.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
                if not any(tokenizer.token(id) in text for id in (3, 5)):  # bos and eos, special in what is reopened
                    assert reopened.encode(text) == ids and reopened.decode(ids) == wider.decode(ids)
        seen.append(name)
    assert len(seen) >= 6 and any("lower" in name for name in seen), seen


def flags(backend: tokenizers.Tokenizer) -> dict[str, tuple[int, bool, bool, bool, bool, bool]]:
    """Of each token that was added."""
    return {
        token.content: (id, token.special, token.lstrip, token.rstrip, token.single_word, token.normalized)
        for id, token in backend.get_added_tokens_decoder().items()
        if token.content in NAMES
    }
