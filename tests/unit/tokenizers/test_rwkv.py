"""RWKV's vocabulary: the longest token at each place, and its file."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.rwkv import FILE, RWKVTokenizer, read_vocabulary
from tests.parity.test_llama_cpp_tokenizers import TEXT, longest_match

TOKENIZER = longest_match()
WORDS = [token.decode("utf-8", "replace") for token in TOKENIZER.tokens.values()]


def longest(data: bytes) -> list[int]:
    """The same by its definition: of all tokens that the rest begins with, the longest."""
    ids = []
    while data:
        id, token = max(TOKENIZER.tokens.items(), key=lambda one: len(one[1]) if data.startswith(one[1]) else 0)
        ids, data = [*ids, id], data[len(token) :]
    return ids


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=6).map("".join))
def test_each_token_is_the_longest_that_matches(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids == longest(text.encode()) and TOKENIZER.decode(ids) == text


def test_a_published_line_is_read_and_written_as_python_writes_strings_and_bytes(tmp_path: Path) -> None:
    assert read_vocabulary(b"1 '\\x00' 1\r\n261 '\\n\\n' 2\r\n3 b'\\xe2\\x80' 2\r\n4 ' \"' 2\n") == {
        1: b"\0", 261: b"\n\n", 3: b"\xe2\x80", 4: b' "'
    }  # fmt: skip
    separator = RWKVTokenizer(TOKENIZER.tokens | {400: "a\u2028b ".encode()}, {"eos_token": "<end>"})
    separator.save(tmp_path)
    read = open_tokenizer(tmp_path)
    assert isinstance(read, RWKVTokenizer) and read.tokens == separator.tokens and read.vocab_size == 401
    assert read.special_tokens == {"<end>": 0} and (read.bos, read.eos, read.adds_bos) == (0, (0,), False)
    assert read.encode_with_special_tokens("the<end>") == [*read.encode("the"), 0]
    assert open_tokenizer(tmp_path / FILE).encode(TEXT) == TOKENIZER.encode(TEXT)
    assert [read.token(id) for id in (0, 11, 400)] == ["<end>", "\\n", "a\\u2028b▁"]
