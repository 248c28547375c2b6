"""SentencePiece models of each of spm_train's options: read, and exported as a tokenizer.json with the same ids."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from archetype.errors import DataError
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.fast import fast_definition, write_fast
from archetype.tokenizers.same_ids import check_saved
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.helpers.cases import case
from tests.helpers.sentencepieces import OPTIONS, trained

# Without combining marks: the `tokenizers` library loses those behind a character that the rules replace.
PARTS = ("the", " the", "cat", "  ", " ", "\t", "\n", "\r\n", "é", "ｆ", "½", "東", "🙂", "<0x41>", "<unk>", "<sep>")


def drawn(count: int) -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(PARTS, k=rng.randint(1, 12))) for _ in range(count)]


def library_of(tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    definition = fast_definition(tokenizer)
    assert definition is not None
    return tokenizers.Tokenizer.from_str(json.dumps(definition))


def has_form(options: dict[str, Any]) -> bool:
    """A symbol of BPE after a space before the first word has none."""
    return options["model_type"] != "bpe" or "user_defined_symbols" not in options or "add_dummy_prefix" in options


def test_every_option_is_read_as_its_library_reads_it() -> None:
    texts = [*AWKWARD_TEXTS, *drawn(30)]
    for options in OPTIONS:
        with case(*options.items()):
            ours = SentencePieceTokenizer(trained(options))
            theirs = sentencepiece.SentencePieceProcessor(model_proto=trained(options))
            for text in texts:
                ids = ours.encode(text)
                assert ids == theirs.encode(text), text
                assert ours.decode(ids) == theirs.decode(ids), text


def test_every_option_is_exported_with_the_same_ids() -> None:
    texts = [*AWKWARD_TEXTS, *drawn(30)]
    for options in OPTIONS:
        with case(*options.items()):
            tokenizer = SentencePieceTokenizer(trained(options))
            if not has_form(options):
                assert fast_definition(tokenizer) is None
                continue
            library = library_of(tokenizer)
            for text in texts:
                ids = tokenizer.encode_with_special_tokens(text)
                assert library.encode(text, add_special_tokens=False).ids == ids, text
                assert library.encode(text).ids == tokenizer.add_special_tokens(ids), text
                if "▁" not in text:  # of spaces that a text spells so the library drops but one at its start
                    assert library.decode(ids) == tokenizer.decode(ids), text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_changed_step_is_noticed(kind: str, tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(trained({"model_type": kind}))
    tokenizer.save(tmp_path)
    write_fast(tokenizer, tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    for number in range(len(definition["normalizer"]["normalizers"])):
        steps = list(definition["normalizer"]["normalizers"])
        step = steps.pop(number)
        changed = definition | {"normalizer": {"type": "Sequence", "normalizers": steps}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
        if step.get("pattern") == {"String": "\r\n"}:
            continue  # its two spaces would be joined
        with pytest.raises(DataError, match="has other ids there") as caught:
            check_saved(tokenizer, tmp_path)
        assert "\n" not in str(caught.value)
