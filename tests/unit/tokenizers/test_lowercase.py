"""A tokenizer that turns every text to lower case does so for ever."""

from pathlib import Path

import pytest

from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer

TEXT = "The Cat and the cat; ÄRGER und ärger. " * 10


def trained(kind: str, lowercase: bool) -> Tokenizer:
    return train_tokenizer(kind, TEXT, 300, lowercase=lowercase)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_case_is_lost_and_stays_lost_in_its_files(kind: str, tmp_path: Path) -> None:
    original = trained(kind, lowercase=True)
    original.save(tmp_path)
    for tokenizer in (original, open_tokenizer(tmp_path)):
        assert tokenizer.encode("THE CAT ÄRGER") == tokenizer.encode("the cat ärger")
        assert tokenizer.decode(tokenizer.encode("The Cat")) == "the cat"
    assert open_tokenizer(tmp_path).encode(TEXT) == original.encode(TEXT)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_without_it_the_case_is_kept(kind: str) -> None:
    tokenizer = trained(kind, lowercase=False)
    assert tokenizer.decode(tokenizer.encode("The Cat")) == "The Cat"


@pytest.mark.parametrize("kind", ["bytes", "characters", "words"])
def test_other_kinds_refuse_it(kind: str) -> None:
    with pytest.raises(DataError) as caught:
        train_tokenizer(kind, TEXT, None, lowercase=True)  # type: ignore[arg-type]
    assert str(caught.value) == f"lowercase: a tokenizer of kind {kind} keeps the case; use byte_bpe or bpe"
