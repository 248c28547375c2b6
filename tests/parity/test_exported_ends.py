"""What starts and ends a text, in every export: as the tokenizer says it, and as transformers reads it there."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.errors import DataError
from archetype.models.build import build
from archetype.tokenizers import Tokenizer, same_ids, train_tokenizer
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from tests.helpers.cases import case
from tests.helpers.examples import every

TEXT = "the model reads a token and says what comes next\n" * 9
TEXTS = ("", "a", "the model", "reads a\n", " next")
KINDS = {"bytes": None, "characters": None, "words": None, "byte_bpe": 300, "bpe": 60}
Ends = tuple[int | None, tuple[int, ...], bool]


def tokenizer_of(kind: str, ends: Ends) -> Tokenizer:
    tokenizer = train_tokenizer(kind, TEXT, KINDS[kind])
    tokenizer.bos, tokenizer.eos, tokenizer.adds_bos = ends
    return tokenizer


def model_of(tokenizer: Tokenizer) -> LanguageModel:
    spec = archetype.load_spec("llama-tiny").replace(vocab_size=tokenizer.vocab_size)
    return LanguageModel(spec, build(spec).eval(), tokenizer)


def framed(tokenizer: HuggingFaceTokenizer, single: str) -> HuggingFaceTokenizer:
    """The same with another post-processor."""
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single=single, pair=f"{single} $B", special_tokens=[*tokenizer.special_tokens.items()]
    )
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    return HuggingFaceTokenizer(tokenizer.backend.to_str().encode(), config)


def same(tokenizer: Tokenizer, folder: Path) -> None:
    theirs, again = AutoTokenizer.from_pretrained(folder), archetype.load(folder).tokenizer
    assert again is not None
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos, next(iter(tokenizer.eos), None))
    assert (again.bos, again.eos[:1]) == (tokenizer.bos, tokenizer.eos[:1])
    for text in TEXTS:
        ids = tokenizer.encode_with_special_tokens(text)
        assert theirs(text, add_special_tokens=False).input_ids == ids, text
        assert theirs(text).input_ids == again.add_special_tokens(ids) == tokenizer.add_special_tokens(ids), text


@pytest.mark.parametrize("format", ["hf", "archetype-hf"])
@pytest.mark.parametrize("kind", every(4, KINDS))
def test_every_kind(kind: str, format: Any, tmp_path: Path) -> None:
    """Also kinds whose own file names both by their ids alone; a token of a text is one of them there."""
    for ends in ((None, (), False), (None, (7,), False), (9, (7,), False), (9, (7, 8), True), (9, (9,), True)):
        (bos, eos, adds_bos), first = ends, 97 if kind == "bytes" else 0
        shifted = None if bos is None else first + bos, tuple(first + id for id in eos), adds_bos
        tokenizer = tokenizer_of(kind, shifted)
        with case(ends):
            folder = tmp_path / str(ends)
            try:
                export(model_of(tokenizer), folder, format=format)
            except DataError as error:  # a token that a text spells, which would be found before its neighbours
                assert kind in ("byte_bpe", "bpe", "words") and ends != (None, (), False)
                assert "other ids there" in str(error) and not folder.exists()
            else:
                same(tokenizer, folder)


@pytest.mark.parametrize(
    "single", every(2, ["$A", "<s> $A", "$A </s>", "<s> $A </s>", "<s> $A </s> </s>", "</s> $A", "$A <s>"])
)
def test_every_frame(single: str, tmp_path: Path) -> None:
    """GGUF has two flags for it; what they cannot say is refused."""
    plain = add_tokens(train_tokenizer("byte_bpe", TEXT, 300), ("<s>", "</s>"))
    assert isinstance(plain, HuggingFaceTokenizer)
    tokenizer = framed(plain, single)
    lm = model_of(tokenizer)
    export(lm, tmp_path / "hf")
    same(tokenizer, tmp_path / "hf")
    lm.save(tmp_path / "run")
    again = archetype.load(tmp_path / "run").tokenizer
    assert again is not None and again.encode_prompt("a") == tokenizer.encode_prompt("a")
    if single in ("$A", "<s> $A", "$A </s>", "<s> $A </s>"):
        export(lm, tmp_path / "gguf", format="gguf")
        read = archetype.load(tmp_path / "gguf" / "model.gguf").tokenizer
        assert read is not None and (read.bos, read.eos[:1]) == (tokenizer.bos, tokenizer.eos[:1])
        assert read.encode_prompt("a") == tokenizer.encode_prompt("a")
    else:
        with pytest.raises(DataError, match=r"with GGUF's keys as .*; use --format hf, or --allow") as caught:
            export(lm, tmp_path / "gguf", format="gguf")
        assert "\n" not in str(caught.value) and not (tmp_path / "gguf").exists()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"bos_token": "</s>"}, "bos is id 294, and would be id 295 in a tokenizer.json"),
        ({"eos_token": None}, "eos is id 295, and would be absent in a tokenizer.json"),
        ({"post_processor": None}, "'' between its special tokens has other ids there"),
    ],
)
def test_files_that_say_otherwise_are_refused(
    change: dict[str, Any], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a writer that loses one of the three is noticed, and nothing is left."""
    plain = add_tokens(train_tokenizer("byte_bpe", TEXT, 300), ("<s>", "</s>"))
    assert isinstance(plain, HuggingFaceTokenizer)
    tokenizer, save = framed(plain, "<s> $A"), HuggingFaceTokenizer.save

    def spoiled(self: HuggingFaceTokenizer, folder: Path) -> None:
        save(self, folder)
        name = "tokenizer.json" if "post_processor" in change else "tokenizer_config.json"
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | change))

    monkeypatch.setattr(HuggingFaceTokenizer, "save", spoiled)
    for write in (lambda to: export(model_of(tokenizer), to), lambda to: model_of(tokenizer).save(to)):
        with pytest.raises(DataError) as caught:
            write(tmp_path / "out")
        assert cause in str(caught.value) and "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    export(model_of(tokenizer), tmp_path / "out")
    same_ids.check_saved(tokenizer, tmp_path / "out")
