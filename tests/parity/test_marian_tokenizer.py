"""The ids and texts of transformers' MarianTokenizer, with SentencePiece models of a few sentences in two languages."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import archetype
from archetype.tokenizers import open_tokenizer
from archetype.tokenizers.marian import MarianTokenizer
from tests.helpers.examples import examples
from tests.helpers.weights import randomize

ENGLISH = """The small cat sleeps on the warm stone in front of the house.
Who has taken the bread that was lying on the table this morning?
We walked along the river until it was dark, and then we went home.
It is not the cat that has taken the bread; it was the neighbour's dog!
"""
GERMAN = """Die kleine Katze schläft auf dem warmen Stein vor dem Haus.
Wer hat das Brot genommen, das heute Morgen auf dem Tisch lag?
Wir gingen am Fluss entlang, bis es dunkel war, und dann gingen wir heim.
Nicht die Katze hat das Brot genommen, es war der Hund des Nachbarn!
"""
CODES = [">>deu<<", ">>nds<<"]
TEXTS = [
    "",
    " ",
    "The cat sleeps.",
    "  The   river\twas\ndark. ",
    ">>deu<< The cat sleeps.",
    ">>nds<<The cat",
    ">>fra<< The cat",
    ">> << The cat",
    ">><<",
    ">>deu The cat",
    "The >>deu<< cat",
    " >>deu<< The cat",
    ">>deu<<>>nds<< cat",
    "東京 cat 😀 naïve",
    "é",
    "▁cat▁",
    "ﬁne ｃａｔ a\u0301",
    "\x00cat\x7f",
    "the cat </s",
    "<unk",
]
fuzz = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.text() | st.text(alphabet=" \n\ttheTcaré東😀1.,>d<u▁", max_size=60)


def model(text: str, vocab_size: int, kind: str) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=file,
        vocab_size=vocab_size,
        model_type=kind,
        hard_vocab_limit=False,
        bos_id=-1,
        minloglevel=2,
    )
    return file.getvalue()


def table(*models: bytes, without: str = "") -> dict[str, int]:
    """Ids in the order of Marian's own files: the ends first, padding last."""
    pieces = dict.fromkeys(("</s>", "<unk>"))
    for data in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        pieces |= dict.fromkeys(processor.id_to_piece(id) for id in range(processor.vocab_size()))
    pieces.pop(without, None)
    return {piece: id for id, piece in enumerate([*pieces, *CODES, "<pad>"])}


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = model(ENGLISH, 90, request.param), model(GERMAN, 80, request.param)
    path = tmp_path_factory.mktemp("marian")
    (path / "source.spm").write_bytes(source)
    (path / "target.spm").write_bytes(target)
    (path / "vocab.json").write_text(json.dumps(table(source, target, without="y"), indent=2))
    settings = {"source_lang": "en", "target_lang": "de", "model_max_length": 512, "sp_model_kwargs": {}}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> MarianTokenizer:
    tokenizer = open_tokenizer(folder)
    assert isinstance(tokenizer, MarianTokenizer)
    return tokenizer


def reference(folder: Path) -> Any:
    # it recommends a package whose normalization it then applies to no text that is encoded
    with pytest.warns(UserWarning, match=r"^Recommended: pip install sacremoses\.$"):
        return transformers.MarianTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return reference(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_sources(ours: MarianTokenizer, theirs: Any, text: str) -> None:
    assert ours.add_special_tokens(ours.encode(text)) == theirs(text).input_ids


@pytest.mark.parametrize("text", TEXTS)
def test_targets(ours: MarianTokenizer, theirs: Any, text: str) -> None:
    assert ours.add_special_tokens(ours.encode_target(text)) == theirs(text_target=text).input_ids


@fuzz
@given(text=texts)
def test_any_text(ours: MarianTokenizer, theirs: Any, text: str) -> None:
    assert ours.add_special_tokens(ours.encode(text)) == theirs(text).input_ids
    assert ours.add_special_tokens(ours.encode_target(text)) == theirs(text_target=text).input_ids


@fuzz
@given(data=st.data())
def test_any_ids(ours: MarianTokenizer, theirs: Any, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=30))
    expected = theirs.decode(ids, skip_special_tokens=True, use_source_tokenizer=False)
    assert ours.decode(ids) == expected
    assert theirs.decode(ids, skip_special_tokens=True) == expected  # what it does where the caller says nothing


def test_the_ends_and_the_size(ours: MarianTokenizer, theirs: Any) -> None:
    assert ours.eos == (theirs.eos_token_id,)
    assert ours.special_tokens == dict(zip(theirs.all_special_tokens, theirs.all_special_ids, strict=True))
    assert ours.vocab_size == theirs.vocab_size


def test_targets_come_back(ours: MarianTokenizer) -> None:
    for line in GERMAN.splitlines():
        assert ours.decode(ours.add_special_tokens(ours.encode_target(line))) == line
        assert ours.encode(line) != ours.encode_target(line)  # the control: the source's model cuts it otherwise


def test_saved_transformers_reads_it_again(ours: MarianTokenizer, theirs: Any, tmp_path: Path) -> None:
    ours.save(tmp_path)
    again = reference(tmp_path)
    for text in TEXTS:
        assert again(text).input_ids == theirs(text).input_ids
        assert again(text_target=text).input_ids == theirs(text_target=text).input_ids


@pytest.mark.parametrize("name", ["</s>", "<pad>", "<unk>"])
def test_a_special_token_in_a_text_ends_and_hides_nothing(ours: MarianTokenizer, theirs: Any, name: str) -> None:
    """Safer than theirs: what a text spells is text."""
    text = f"The cat{name} sleeps."
    assert theirs.convert_tokens_to_ids(name) in theirs(text, add_special_tokens=False).input_ids
    ids = ours.encode(text)
    assert not {ours.special_tokens["</s>"], ours.special_tokens["<pad>"]} & {*ids}
    without = ours.encode("The cat sleeps.")
    assert ids[:2] == without[:2] and ids[-3:] == without[-3:] and len(ids) > len(without)


def test_two_tables(folder: Path, tmp_path: Path) -> None:
    """Of models whose languages share no ids."""
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for name, data in (("vocab", "source"), ("target_vocab", "target")):
        (tmp_path / f"{name}.json").write_text(json.dumps(table((folder / f"{data}.spm").read_bytes())))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    ours, theirs = open_tokenizer(tmp_path), reference(tmp_path)
    for text in TEXTS[2:]:
        assert ours.add_special_tokens(ours.encode(text)) == theirs(text).input_ids
        assert ours.add_special_tokens(ours.encode_target(text)) == theirs(text_target=text).input_ids
    for line in GERMAN.splitlines():
        # not compared: theirs leaves out the piece that has the number of the other language's padding
        assert ours.decode(ours.encode_target(line)) == line


def test_translations_and_what_is_exported(folder: Path, theirs: Any, tmp_path: Path) -> None:
    """From text to text, with padding forbidden as in the published folders, and again from our export."""
    size, pad = theirs.vocab_size, theirs.pad_token_id
    sides = {f"{side}_{key}": count for side in ("encoder", "decoder")
             for key, count in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 24))}  # fmt: skip
    config = transformers.MarianConfig(
        **sides, vocab_size=size, decoder_vocab_size=size, d_model=16, max_position_embeddings=64, eos_token_id=0,
        pad_token_id=pad, decoder_start_token_id=pad,
    )  # fmt: skip
    model = randomize(transformers.MarianMTModel(config).eval())
    model.final_logits_bias[0, pad] = 5.0  # the likeliest, if it were not forbidden
    model.generation_config = transformers.GenerationConfig(
        bad_words_ids=[[pad]], eos_token_id=0, pad_token_id=pad, decoder_start_token_id=pad
    )
    published, exported = tmp_path / "published", tmp_path / "exported"
    model.save_pretrained(published)
    theirs.save_pretrained(published)
    archetype.export(archetype.load(published), exported)
    for path in (published, exported):
        lm, model = archetype.load(path), transformers.MarianMTModel.from_pretrained(path)
        for text in ("The cat sleeps.", ">>deu<< Who has taken the bread?"):
            inputs = reference(path)(text, return_tensors="pt")
            most = inputs.input_ids.shape[1] + 20
            written = model.generate(**inputs, max_new_tokens=most, num_beams=1, do_sample=False)[0]
            expected = theirs.decode(written, skip_special_tokens=True, use_source_tokenizer=False)
            assert expected and lm.translate(text, num_beams=1, max_extra_tokens=20) == expected
            assert lm.translate(text, num_beams=1, max_extra_tokens=20, suppress_tokens=()) != expected  # the control
