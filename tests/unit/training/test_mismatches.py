"""Models, data and objectives that do not belong together: said in words, before anything is written."""

from pathlib import Path

import numpy as np
import pytest
import torch

from archetype import spec as specs
from archetype.errors import ArchetypeError
from archetype.training.datasets import ImageData, PairData, TextData
from archetype.training.objectives.masked_token import MaskedTokenObjective
from archetype.training.objectives.span_corruption import SpanCorruptionObjective
from archetype.training.recipe import Recipe
from archetype.training.resolve import resolve_objective
from archetype.training.setup import resume, start
from tests.helpers.recipes import ENCODER, decoder, megabyte, recipes, transformer_pair, vision
from tests.unit.training.test_resume import steps

CPU = torch.device("cpu")
NEXT, MASKED, SPANS, PAIRS, CLASS = (
    {"kind": kind} for kind in ("next_token", "masked_token", "span_corruption", "sequence_to_sequence", "image_class")
)
WITH_CLASSES = ENCODER | {"head": {"kind": "classification", "num_classes": 2}}


def refusal(recipe: Recipe, folder: Path) -> str:
    before = sorted(folder.iterdir())
    with pytest.raises(ArchetypeError) as caught:
        start(folder / "run", recipe, CPU)
    assert sorted(folder.iterdir()) == before
    return str(caught.value).replace(str(folder), "")


@pytest.fixture
def all_recipes(tmp_path: Path) -> dict[str, Recipe]:
    return recipes(tmp_path)


HEADS = {"encoder": "masked_language_model", "vision_encoder": "classification"}


OTHER = "other data"


def or_other(data: str, preset: str, kinds: str) -> str:
    return f"a model that reads data of kind {data}, such as --spec {preset}, or {kinds}"


def mismatch(objective: str, model: str, data: str, remedy: str, head: str = "") -> str:
    head = head or HEADS.get(model, "language_model")
    return f"objective: {objective} a model of kind {model} with head {head} and data of kind {data}; use {remedy}"


MISMATCHES = [
    ("ngram", decoder(), MASKED, mismatch("masked_token does not suit", "decoder", "corpus", "next_token")),
    ("ngram", decoder(), SPANS, mismatch("span_corruption does not suit", "decoder", "corpus", "next_token")),
    ("ngram", decoder(), CLASS, mismatch("image_class does not suit", "decoder", "corpus", "next_token")),
    ("ngram", ENCODER, NEXT,
     mismatch("next_token does not suit", "encoder", "corpus", "masked_token or masked_diffusion")),
    ("ngram", WITH_CLASSES, None,
     mismatch("no objective suits", "encoder", "corpus",
         or_other("corpus", "llama-tiny", "data of kind labelled_text, labelled_tokens, text_pairs or scored_pairs"),
         "classification")),
    ("ngram", transformer_pair(), NEXT,
     mismatch("next_token does not suit", "encoder_decoder", "corpus", "span_corruption")),
    ("ngram", transformer_pair(), PAIRS,
     mismatch("sequence_to_sequence does not suit", "encoder_decoder", "corpus", "span_corruption")),
    ("ngram", megabyte(), MASKED, mismatch("masked_token does not suit", "megabyte", "corpus", "next_token")),
    ("pairs", decoder(), None,
     mismatch("no objective suits", "decoder", "pairs", or_other("pairs", "transformer-tiny", OTHER))),
    ("pairs", decoder(), PAIRS,
     mismatch("sequence_to_sequence does not suit", "decoder", "pairs", or_other("pairs", "transformer-tiny", OTHER))),
    ("pairs", ENCODER, None,
     mismatch("no objective suits", "encoder", "pairs", or_other("pairs", "transformer-tiny", OTHER))),
    ("pairs", transformer_pair(), SPANS,
     mismatch("span_corruption does not suit", "encoder_decoder", "pairs", "sequence_to_sequence")),
    ("images", decoder() | {"vocab_size": 9}, None,
     mismatch("no objective suits", "decoder", "images", or_other("images", "vit-tiny", OTHER))),
    ("images", vision(), NEXT, mismatch("next_token does not suit", "vision_encoder", "images", "image_class")),
    ("ngram", vision(), None,
     mismatch("no objective suits", "vision_encoder", "corpus",
         or_other("corpus", "llama-tiny", "data of kind images"))),
    ("pairs", vision(), None,
     mismatch("no objective suits", "vision_encoder", "pairs",
         or_other("pairs", "transformer-tiny", "data of kind images"))),
]  # fmt: skip


def test_what_does_not_fit_together_is_named(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    for data, spec, objective, message in MISMATCHES:
        assert refusal(all_recipes[data].replace(spec=spec, objective=objective), tmp_path) == message


def test_the_objective_follows_model_and_data() -> None:
    for spec, data, kind in (
        (decoder(), TextData(), "next_token"),
        (megabyte(), TextData(), "next_token"),
        (ENCODER, TextData(), "masked_token"),
        (transformer_pair(), TextData(), "span_corruption"),
        (transformer_pair(), PairData(), "sequence_to_sequence"),
        (vision(), ImageData(), "image_class"),
    ):
        sizes = {} if isinstance(data, ImageData) else {"vocab_size": 9}
        assert resolve_objective(Recipe(data=data), specs.parse(spec | sizes)).kind == kind


@pytest.mark.parametrize("name", ["encoder", "spans"])
def test_a_vocabulary_left_to_the_tokenizer_has_room_for_what_the_objective_adds(
    all_recipes: dict[str, Recipe], tmp_path: Path, name: str
) -> None:
    state = start(tmp_path / "large enough", all_recipes[name], CPU)
    objective, size = state.objective, state.model.spec.vocab_size  # type: ignore[union-attr]
    if isinstance(objective, MaskedTokenObjective):
        assert (objective.mask_id, objective.vocab_size, size) == (256, 256, 257)
    else:
        assert isinstance(objective, SpanCorruptionObjective)
        _, spans = objective.config.num_noise_tokens_and_spans(16)
        assert (objective.first_sentinel, size) == (256 + spans, 256 + spans + 1)
        target = objective.batch(0)[1]
        assert target[target > 127].min() == 256  # the last sentinel follows the last byte
    small = all_recipes[name].replace(spec=all_recipes[name].spec | {"vocab_size": size - 1})  # type: ignore[operator]
    cause = f"vocab_size: {size - 1} is too small for the {size} tokens of the tokenizer and the objective"
    remedy = f"use a smaller tokenizer, or raise the size: --set spec.vocab_size={size}"
    assert refusal(small, tmp_path) == f"{cause}; {remedy}"


def test_a_source_vocabulary_that_is_too_small_is_named(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    spec = all_recipes["recurrent pairs"].spec | {"source_vocab_size": 20}  # type: ignore[operator]
    message = refusal(all_recipes["recurrent pairs"].replace(spec=spec), tmp_path)
    assert message.startswith("source_vocab_size: 20 is too small for the ")


def test_pictures_that_the_model_does_not_take_are_named(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    images, file = all_recipes["images"], "/images.npz"
    larger = images.replace(spec=vision() | {"image_size": 12, "num_channels": 3})
    message = refusal(larger, tmp_path)
    assert message == f"{file}: the images are 1 x 8 x 8, but the model takes 3 x 12 x 12; " + (
        "change one of them, for example with --set spec.num_channels=1 --set spec.image_size=8"
    )
    fewer = images.replace(spec=vision() | {"head": {"kind": "classification", "num_classes": 2}})
    assert refusal(fewer, tmp_path) == f"{file}: contains class 2, but the model has 2 classes, numbered from 0; " + (
        "change one of them, for example with --set spec.head.num_classes=3"
    )
    assert refusal(images.replace(data=ImageData()), tmp_path) == (
        "data.file: no file was passed; name a file with --images or in the recipe"
    )


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_side_that_is_missing_is_named(all_recipes: dict[str, Recipe], tmp_path: Path, side: str) -> None:
    recipe = all_recipes["pairs"].replace(data=all_recipes["pairs"].data.replace(**{side: ()}))
    assert (
        refusal(recipe, tmp_path) == f"data.{side}: no {side} was passed; name a file with --{side}, or in the recipe"
    )


def test_pairs_that_all_are_too_long_are_told(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    assert refusal(all_recipes["pairs"].replace(sequence_length=1), tmp_path) == (
        "data: only 0 training and 0 validation pairs fit into 1 tokens; use more pairs, or a longer sequence_length"
    )


def test_pairs_need_a_tokenizer_that_ends_texts(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    pairs = all_recipes["pairs"]
    of_characters = pairs.replace(data=pairs.data.replace(tokenizer="characters", vocab_size=None))
    assert refusal(of_characters, tmp_path) == (
        "tokenizer: a tokenizer of kind characters has no token that ends a text; use byte_bpe"
    )


def test_files_of_pairs_do_not_run_into_each_other(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    """Two files without a line end at their ends are as one file."""
    halves: dict[str, list[str]] = {}
    for side in ("source", "target"):
        lines = (tmp_path / f"{side}.txt").read_text().splitlines()
        for number, part in enumerate((lines[:15], lines[15:])):
            file = tmp_path / f"{side}-{number}.txt"
            file.write_text("\n".join(part))
            halves.setdefault(side, []).append(str(file))
    pairs = all_recipes["pairs"]
    one = start(tmp_path / "one", pairs, CPU)
    two = start(tmp_path / "two", pairs.replace(data=pairs.data.replace(**halves)), CPU)
    assert two.objective.fingerprint == one.objective.fingerprint


def test_no_held_out_line_trains_the_tokenizer(all_recipes: dict[str, Recipe], tmp_path: Path) -> None:
    """The last tenth of the lines is longer than all others, and is held out none the less."""
    for side in ("source", "target"):
        file = tmp_path / f"{side}.txt"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([*lines[:36], "z", *["zebra " * 90] * 3]))
    recipe = all_recipes["pairs"]
    tokenizer = start(tmp_path / "run", recipe.replace(data=recipe.data.replace(split="end")), CPU).tokenizer
    assert tokenizer is not None
    assert len(tokenizer.encode("zebra")) == 5


@pytest.mark.parametrize(
    ("name", "files"),
    [("pairs", "source.txt, /target.txt"), ("images", "images.npz"), ("encoder", "text.txt")],
)
def test_other_data_are_refused_on_resuming(
    all_recipes: dict[str, Recipe], tmp_path: Path, name: str, files: str
) -> None:
    steps(start(tmp_path / "run", all_recipes[name], CPU), 4)
    file = tmp_path / files.partition(",")[0]
    if name == "images":
        with np.load(file) as arrays:
            np.savez(file, images=arrays["images"] + 1, labels=arrays["labels"])
    else:
        file.write_text(file.read_text().replace("token", "taken"))
    with pytest.raises(ArchetypeError) as caught:
        resume(tmp_path / "run", CPU)
    message = str(caught.value).replace(str(tmp_path), "")
    cause = "the data have changed since this run began"
    assert message == f"/{files}: {cause}; restore them, or pass --allow-changes"
