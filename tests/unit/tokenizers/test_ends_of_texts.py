"""What starts and ends a text stays what it was in files, as their readers read them, and in texts that spell it."""

import json
from itertools import product
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from archetype.tokenizers import Tokenizer, open_tokenizer, train_tokenizer
from archetype.tokenizers.added import AddedToken, split_at
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.special_tokens import apply_config
from archetype.tokenizers.token_bytes import TokenBytes
from tests.helpers.cases import case

TEXT = "the model reads a token and says what comes next: café, 世界 " * 9
NAMES = ("<s>", "<end>", "<end>x>", "<turn>")


def tokenizer_of(bos: str | None, adds_bos: bool, eos: tuple[str, ...]) -> Tokenizer:
    tokenizer = add_tokens(train_tokenizer("byte_bpe", TEXT, 300), NAMES)
    special = tokenizer.special_tokens
    tokenizer.bos = None if bos is None else special[bos]
    tokenizer.adds_bos, tokenizer.eos = adds_bos, tuple(special[name] for name in eos)
    return tokenizer


def test_they_are_the_same_in_files_and_as_transformers_reads_them(tmp_path: Path) -> None:
    for number, ((bos, adds_bos), eos) in enumerate(
        product(((None, False), ("<s>", False), ("<s>", True)), ((), ("<end>",), ("<turn>", "<end>")))
    ):
        tokenizer, folder = tokenizer_of(bos, adds_bos, eos), tmp_path / str(number)
        folder.mkdir()
        tokenizer.save(folder)
        again = open_tokenizer(folder)
        said = json.loads((folder / "tokenizer_config.json").read_text())
        with case(bos, adds_bos, eos):
            assert (again.bos, again.adds_bos, again.eos) == (tokenizer.bos, adds_bos, tokenizer.eos[:1])
            assert [said[name] for name in ("bos_token", "eos_token")] == [bos, eos[0] if eos else None]
            assert again.add_special_tokens([7]) == ([tokenizer.bos, 7] if adds_bos else [7])
            theirs = AutoTokenizer.from_pretrained(folder, clean_up_tokenization_spaces=False)
            assert (theirs.bos_token, theirs.eos_token) == (bos, eos[0] if eos else None)
            assert theirs("a").input_ids == again.encode_prompt("a")
            assert theirs("a").input_ids[:1] == ([tokenizer.bos] if adds_bos else tokenizer.encode("a")[:1])


@pytest.mark.parametrize(
    ("config", "bos", "eos", "adds_bos"),
    [
        ({"bos_token": "<s>", "add_bos_token": True}, "<s>", (), True),
        ({"add_bos_token": True}, None, (), False),  # what is not there is not added
        ({"bos_token": None, "add_bos_token": True}, None, (), False),
        ({"cls_token": "<s>", "sep_token": "<end>"}, "<s>", ("<end>",), False),
        ({"cls_token": "<turn>", "bos_token": "<s>", "sep_token": "<turn>", "eos_token": "<end>"}, "<s>", ("<end>",),
         False),
        ({"bos_token": {"content": "<s>"}, "eos_token": {"content": "<end>", "lstrip": True}}, "<s>", ("<end>",),
         False),
    ],
)  # fmt: skip
def test_a_configuration_says_them(
    config: dict[str, object], bos: str | None, eos: tuple[str, ...], adds_bos: bool
) -> None:
    tokenizer, special = tokenizer_of(None, False, ()), add_tokens(train_tokenizer("byte_bpe", TEXT, 300), NAMES)
    ids = special.special_tokens
    apply_config(tokenizer, config, ids.get)
    assert tokenizer.bos == (None if bos is None else ids[bos])
    assert tokenizer.eos == tuple(ids[name] for name in eos) and tokenizer.adds_bos is adds_bos


@pytest.mark.filterwarnings("ignore::archetype.errors.Notice")  # the ids of tokens that are added, and add_bos_token
def test_the_map_counts_where_the_configuration_does_not_list_its_tokens(tmp_path: Path) -> None:
    """As transformers reads both, with the flags of the map's tokens and of those listed."""
    tokenizer_of("<s>", True, ("<end>",)).save(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(
        '{"bos_token": {"content": "<turn>", "lstrip": true}, "additional_special_tokens": ["<end>x>"]}'
    )
    file = tmp_path / "tokenizer_config.json"
    for listed, bos in ((None, "<turn>"), ({}, "<s>"), ({"303": {"content": "<end>", "special": True}}, "<s>")):
        with case(listed):
            said = json.loads(file.read_text())
            file.write_text(json.dumps(said if listed is None else said | {"added_tokens_decoder": listed}))
            theirs, again = AutoTokenizer.from_pretrained(tmp_path), open_tokenizer(tmp_path)
            assert again.bos == again.special_tokens[bos] == theirs.bos_token_id
            assert again.eos == (theirs.eos_token_id,)
            for text in ("the <turn>", "a <s> <end>x> b", "a"):
                assert again.encode_prompt(text) == theirs(text).input_ids


class Plain(Tokenizer):
    """Bytes with special tokens of which one begins with another, which `encode` takes for ordinary text."""

    special_tokens = {"<a": 256, "<a>": 257, "<ab>": 258}  # noqa: RUF012
    vocab_size = 259

    def encode(self, text: str) -> list[int]:
        return [*text.encode()]

    def decode(self, ids: object) -> str:
        raise NotImplementedError

    token = save = decode


def test_the_longest_special_token_is_read_where_several_begin() -> None:
    for text, ids in (("<a>", [257]), ("x<ab><a", [120, 258, 256]), ("<a<a>b", [256, 257, 98]), ("<b>", [60, 98, 62])):
        assert Plain().encode_with_special_tokens(text) == ids


def test_bytes_of_tokens_join_to_the_text() -> None:
    """Whatever a decoder does at the start of a text, such as dropping a space."""
    text = "the café reads 世界  and a token"
    for kind, size in (("byte_bpe", 300), ("bpe", 60), ("words", None), ("characters", None), ("bytes", None)):
        tokenizer = train_tokenizer(kind, [TEXT, text], size)
        ids = tokenizer.encode(text)
        with case(kind):
            joined = b"".join(map(TokenBytes(tokenizer), ids)).decode()
            assert joined.lstrip() == tokenizer.decode(ids)


def test_the_longest_added_token_is_found_where_several_begin() -> None:
    tokens = [AddedToken(id, name) for id, name in enumerate(("<a", "<a>", "<ab>", "b<"))]
    for text, parts in (
        ("<a>b<ab>", ["<a>", "b<", "ab>"]), ("x<ab><a", ["x", "<ab>", "<a"]), ("<a<a>>", ["<a", "<a>", ">"]), ("", []),
    ):  # fmt: skip
        assert split_at(text, tokens) == parts


def test_ids_beyond_the_bytes_have_no_text() -> None:
    tokenizer = train_tokenizer("bytes", "", None)
    assert [tokenizer.token(id) for id in (-1, 97, 255, 256, 10**6)] == ["", "a", "<0xFF>", "", ""]
