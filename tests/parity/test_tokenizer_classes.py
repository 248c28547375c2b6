"""Classes that transformers obeys against the file: each folder has the same tokens there, or the class is named."""

import json
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto import tokenization_auto
from transformers.tokenization_utils_tokenizers import TokenizersBackend

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.errors import ReadOtherwise
from archetype.models.build import build
from archetype.tokenizers import open_tokenizer, train_tokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.rebuilt import otherwise, reading_class, table
from tests.helpers import tokenizer_classes
from tests.helpers.cases import case

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")  # of keys that are named
TEXTS = (
    "", "Hello, world! it's WE'LL 1234567", "  a  b\n\n c\t", "def f(x):\n    return x ** 2\r\n", "Café ﬁ ½ naïve",
    "你好，世界。 안녕 🙂", "<unk> a<s>b</s> c<pad>", "[CLS] x [MASK]y <mask> z", "a <|endoftext|> b <eos>",
    "▁ ▁▁ ``q'' 3.14 ##ing",
)  # fmt: skip


def folders(shared: Path) -> list[Path]:
    return [file.parent for file in sorted((shared / "published" / "tokenizers").glob("*/tokenizer.json"))]


def named(source: Path, folder: Path, name: str, model: dict[str, Any] | None = None) -> Path:
    """The folder with another class."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    config = json.loads((source / "tokenizer_config.json").read_text()) | {"tokenizer_class": name}
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if model is not None:
        (folder / "config.json").write_text(json.dumps(model))
    return folder


def outcome(tokenizer: HuggingFaceTokenizer, folder: Path) -> str:
    """How transformers reads a folder beside the tokenizer: the same, otherwise, or not at all."""
    try:
        theirs = AutoTokenizer.from_pretrained(folder)
        rows = [theirs(text).input_ids for text in TEXTS]
        plain = [theirs(text, add_special_tokens=False).input_ids for text in TEXTS]
    except BaseException as error:  # the library's panics are no Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        return "refused"
    ends = (theirs.bos_token_id in (None, tokenizer.bos), theirs.eos_token_id in (None, *tokenizer.eos[:1]))
    ids = [tokenizer.encode(text) for text in TEXTS]
    same = ids == plain and [*map(tokenizer.add_special_tokens, ids)] == rows and all(ends)
    same = same and all(theirs.decode(row, skip_special_tokens=True) == tokenizer.decode(row) for row in ids)
    return "same" if same else "other"


def walk(sources: list[Path], names: list[str], tmp_path: Path) -> Counter[str]:
    """How many folders transformers reads in each way; one that it reads otherwise is named."""
    counts: Counter[str] = Counter()
    for source in sources:
        tokenizer = open_tokenizer(source)
        assert isinstance(tokenizer, HuggingFaceTokenizer)
        for name in names:
            folder = named(source, tmp_path / source.name / name, name)
            tokenizer.config["tokenizer_class"] = name
            said = [*otherwise(tokenizer, folder)]
            result = outcome(tokenizer, folder)
            counts[f"{result}, named" if said else result] += 1
            with case(source.name, name):
                assert said or result != "other"
    return counts


def every_name() -> list[str]:
    """A name of each class that the table describes, and one that takes the file as it is."""
    return [*{cls: name for name, cls in table()["names"].items() if cls}.values(), "PreTrainedTokenizerFast"]


def test_a_share_of_folders_and_classes(shared: Path, tmp_path: Path) -> None:
    names = ["BertTokenizer", "GPT2Tokenizer", "LlamaTokenizerFast", "T5Tokenizer", "Qwen2Tokenizer",
             "PreTrainedTokenizerFast", "NoSuchTokenizer"]  # fmt: skip
    counts = walk(
        [one for one in folders(shared) if one.name in ("bert-base-uncased", "torchtitan-test")], names, tmp_path
    )
    assert counts["other, named"] >= 3 and counts["same"] >= 5


@pytest.mark.slow
def test_every_folder_by_every_class(shared: Path, tmp_path: Path) -> None:
    """Most are refused, for the class lacks its files or the vocabulary is of another model."""
    counts = walk(folders(shared), every_name(), tmp_path)
    assert counts["other"] == 0 and counts["other, named"] >= 400
    assert counts["same"] >= 45 and counts["same, named"] <= 20


def test_a_class_that_the_table_does_not_describe_is_named(shared: Path) -> None:
    """Most are written in Python and read other files."""
    tokenizer = open_tokenizer(shared / "published" / "tokenizers" / "bert-base-uncased")
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    names = [name for name, cls in table()["names"].items() if cls is None]
    assert len(names) >= 30
    for name in names:
        tokenizer.config["tokenizer_class"] = name
        (said,) = otherwise(tokenizer, shared)
        assert f"{name}, which is not compared with the file here" in said


def test_one_line_at_opening(shared: Path, tmp_path: Path) -> None:
    source = shared / "published" / "tokenizers" / "bert-base-uncased"
    said = "LlamaTokenizer, which has its own added_tokens, normalizer, pre_tokenizer, decoder and model"
    with pytest.warns(ReadOtherwise, match=said) as caught:
        open_tokenizer(named(source, tmp_path / "llama", "LlamaTokenizerFast"))
    (line,) = [str(one.message) for one in caught if isinstance(one.message, ReadOtherwise)]
    assert "\n" not in line and "'tokenizer_class': 'PreTrainedTokenizerFast'" in line
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReadOtherwise)
        open_tokenizer(named(source, tmp_path / "bert", "BertTokenizer"))
        open_tokenizer(named(source, tmp_path / "file", "PreTrainedTokenizerFast"))


SHARE = ("bert", "llama", "phi3", "qwen2")


def read_by_the_same_class(kinds: Iterable[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare the class that `AutoTokenizer` chooses by both files with the one that is named here."""
    monkeypatch.setattr(PreTrainedTokenizerBase, "from_pretrained", classmethod(lambda cls, *_, **__: cls))
    named = (None, "PreTrainedTokenizerFast", "LlamaTokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer")
    count = 0
    classes = [*((own, None) for own in named), (None, "BertTokenizer")]
    for kind, (own, of_model), has_bytes in product(kinds, classes, (False, True)):
        config = {} if own is None else {"tokenizer_class": own}
        model = {"model_type": kind} | ({} if of_model is None else {"tokenizer_class": of_model})
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps(model))
        (folder / "tokenizer.json").write_text('{"decoder": {"type": "ByteLevel"}}' if has_bytes else "{}")
        try:
            AutoConfig.from_pretrained(folder)  # or else the tokenizer is chosen as for a type without a class
            cls = AutoTokenizer.from_pretrained(folder)
        except (ImportError, ValueError, KeyError, TypeError, AttributeError):  # a configuration that lacks keys
            continue
        if not isinstance(cls, type):  # of a pair of tokenizers
            continue
        reading = reading_class(config, model, has_bytes)
        with case(kind, own, of_model, has_bytes):
            if reading is None:
                assert issubclass(cls, TokenizersBackend) and cls.__name__ not in table()["classes"]
            else:
                assert table()["names"][reading.name] in (None, cls.__name__)
        count += 1
    return count


def test_which_class_reads_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_by_the_same_class(SHARE, tmp_path, monkeypatch) == 12 * len(SHARE)


@pytest.mark.slow
def test_which_class_reads_a_folder_of_every_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_by_the_same_class(table()["types"], tmp_path, monkeypatch) >= 2000


def test_the_table_is_that_of_the_installed_release() -> None:
    if transformers.__version__ != table()["version"]:
        pytest.skip(f"the table is of transformers {table()['version']}")
    for name in ("BertTokenizer", "CLIPTokenizer", "LlamaTokenizer", "XLNetTokenizer"):
        with case(name):
            described = tokenizer_classes.described(tokenization_auto.tokenizer_class_from_name(name))
            row = table()["classes"][name]
            steps = {
                step: [keys, [[said[:-1], table()["steps"][said[-1]]] for said in cases]]
                for step, (keys, cases) in row["steps"].items()
            }
            assert described == row | {"steps": steps}


@pytest.mark.slow
def test_the_whole_table_is_that_of_the_installed_release() -> None:
    if transformers.__version__ != table()["version"]:
        pytest.skip(f"the table is of transformers {table()['version']}")
    assert tokenizer_classes.table() == table()


def test_an_export_that_transformers_reads_otherwise_is_named(tmp_path: Path) -> None:
    """Qwen2's class reads it whatever the folder names; Llama's type leaves that to the folder."""
    text = "the model reads a token, it's 1234567 cafe\u0301 \n\n" * 9
    tokenizer = train_tokenizer("byte_bpe", text, 300)
    for preset, names in (("qwen2.5-0.5b", ["Qwen2Tokenizer"]), ("llama-tiny", [])):
        spec = archetype.load_spec(preset)
        spec = spec.replace(vocab_size=tokenizer.vocab_size, layers=spec.layers[:1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            export(LanguageModel(spec, build(spec).eval(), tokenizer), tmp_path / preset)
        said = [str(one.message) for one in caught if isinstance(one.message, ReadOtherwise)]
        assert [name for line in said for name in ("Qwen2Tokenizer",) if name in line] == names
        theirs = AutoTokenizer.from_pretrained(tmp_path / preset)
        same = theirs("1234567 cafe\u0301").input_ids == tokenizer.encode("1234567 cafe\u0301")
        assert same is not bool(names)
