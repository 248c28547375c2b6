"""Every tiny preset, from its cost to its answers: counted, trained on its own objective, and asked."""

import argparse
import decimal
import json
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from archetype import cost, families, generate
from archetype.api.language_model import LanguageModel
from archetype.data.pairs import end_of_text
from archetype.estimate.memory import MemoryCost
from archetype.generate import Beam
from archetype.models.build import Model, build
from archetype.models.causal import CausalModel
from archetype.models.cost import model_cost
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.vision.module import VisionEncoder
from archetype.runs.directory import Run
from archetype.training.datasets import Data, ImageData, PairData, TextData
from archetype.training.loop import take_step
from archetype.training.objectives import SpanCorruption
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.resolve import build_objective, build_tokenizer, resolve_spec
from archetype.training.schedules import Cosine
from archetype.training.state import TrainState
from tests.helpers import causal as writing
from tests.helpers.cases import in_one_test
from tests.helpers.combinations import EXACT, padded
from tests.helpers.digits import load_digits
from tests.helpers.examples import every
from tests.helpers.passes import taught
from tests.helpers.weights import distance, randomize
from tests.unit.cost.test_flops import flops_of, padding
from tests.unit.cost.test_parameters import agrees

TINY = sorted(name for name in families.presets() if name.endswith("-tiny"))
STEPS, LENGTH = 14, 48  # past every window
STEPS_OF_PICTURES = 25
ENGLISH = "\n\n".join(str(module.__doc__) for module in (decimal, argparse, json, textwrap, Path))
LINES = [line.strip() for line in ENGLISH.splitlines() if 10 < len(line.strip()) < LENGTH]
EVERY = in_one_test("name", TINY)


def of_kind(*kinds: str) -> Callable[[Callable[..., None]], Any]:
    """The tiny presets of some kinds of model."""
    return in_one_test("name", [name for name in TINY if families.preset(name).kind in kinds])


CAUSAL = of_kind("decoder", "ngram", "megabyte")


@cache
def drawn(name: str) -> Model:
    """The preset's model, every tensor random, ready to evaluate."""
    model = build(families.preset(name))
    randomize(model)
    return model.requires_grad_(False)


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random bytes."""
    return writing.text(batch, length, 256, seed)


# What it costs.


@EVERY
def test_its_parameters_are_the_counted_ones(name: str) -> None:
    agrees(families.preset(name))


@EVERY
def test_it_multiplies_what_is_counted(name: str) -> None:
    preset, model, batch, length = families.preset(name), drawn(name), 2, 48
    texts = tokens(batch, length)
    match model:
        case VisionEncoder():
            length = preset.context_length
            run = flops_of(lambda: model(torch.zeros(batch, 1, 8, 8)).logits)
        case EncoderDecoder():
            run = flops_of(lambda: taught(model, texts, texts))
        case _:
            run = flops_of(lambda: model(texts).logits)
    assert run == cost.cost_report(preset, batch, length).flops["forward"] + padding(preset, batch, length, length)


@of_kind("decoder", "ngram", "megabyte", "encoder_decoder")
@pytest.mark.parametrize("length", [1, 31, 33, 128])
def test_its_state_takes_what_is_counted(name: str, length: int) -> None:
    preset, model = families.preset(name), drawn(name)
    for dtype in (torch.float32, torch.bfloat16):
        if isinstance(model, EncoderDecoder):
            state = model.new_state(tokens(2, length), capacity=length, dtype=dtype)
        else:
            state = model.new_state(2, length, dtype)
        assert state.nbytes == MemoryCost(model_cost(preset), str(dtype).removeprefix("torch.")).state(2, length)


# What must hold of its logits, past every window.


@CAUSAL
@pytest.mark.parametrize("seen", [1, 37, 99])
def test_future_tokens_change_nothing(name: str, seen: int) -> None:
    model, texts = drawn(name), tokens(2, 100)
    changed = torch.cat((texts[:, :seen], (texts[:, seen:] + 1) % 256), 1)
    before, after = model(texts).logits, model(changed).logits
    assert distance(before[:, :seen], after[:, :seen]) < EXACT
    assert distance(before[:, seen:], after[:, seen:]) > 1e-3


@of_kind("encoder")
def test_an_encoders_batch_is_as_each_row_alone(name: str) -> None:
    model, lengths = drawn(name), [100, 97, 99]
    rows = [tokens(1, length, seed)[0] for seed, length in enumerate(lengths)]
    together = model(padded(rows), torch.tensor(lengths)).logits
    for row, length, logits in zip(rows, lengths, together, strict=True):
        alone = model(padded([row], 100, filler=3), torch.tensor([length])).logits
        assert distance(logits[:length], alone[0, :length]) < EXACT
        assert distance(logits[:length], model(row[None]).logits[0]) < EXACT


@of_kind("encoder_decoder")
def test_future_tokens_of_a_target_change_nothing(name: str) -> None:
    model, source, target, counts = drawn(name), tokens(3, 60), tokens(3, 70, 1), torch.tensor([60, 3, 33])
    changed = torch.cat((target[:, :30], (target[:, 30:] + 1) % 256), 1)
    before, after = taught(model, source, target, counts), taught(model, source, changed, counts)
    assert distance(before[:, :30], after[:, :30]) < EXACT


# What it learns, and what it answers then.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English, lines of it in capitals and as they are, and digits of 8 x 8 points."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(ENGLISH)
    (folder / "source.txt").write_text("\n".join(LINES).upper())
    (folder / "target.txt").write_text("\n".join(LINES))
    images, labels = load_digits()
    np.savez(folder / "digits.npz", images=images, labels=labels)
    return folder


def recipe_for(name: str, folder: Path) -> Recipe:
    """The preset's own objective, for so many steps as show that it is learned."""
    kind, objective = families.preset(name).kind, None
    data: Data = TextData(text=(str(folder / "text.txt"),), tokenizer="bytes")
    if name == "t5-tiny":
        objective = SpanCorruption()
    elif kind == "encoder_decoder":
        source, target = ((str(folder / f"{side}.txt"),) for side in ("source", "target"))
        data = PairData(source=source, target=target, tokenizer="byte_bpe", vocab_size=257)
    elif kind == "vision_encoder":
        data = ImageData(file=str(folder / "digits.npz"))
    pictures = kind == "vision_encoder"
    return Recipe(
        spec=name, data=data, objective=objective, steps=STEPS_OF_PICTURES if pictures else STEPS,
        batch_size=64 if pictures else 4, sequence_length=None if pictures else LENGTH,
        optimizer=AdamW(learning_rate=3e-3 if pictures else 6e-3), schedule=Cosine(warmup_steps=2), dtype="float32",
    )  # fmt: skip


@pytest.fixture(scope="module", params=every(8, TINY))
def trained(request: pytest.FixtureRequest, folder: Path) -> tuple[LanguageModel, list[float]]:
    """The preset after its steps, and the loss of each."""
    recipe = recipe_for(request.param, folder)
    texts = recipe.data.read_texts(folder)
    tokenizer = build_tokenizer(recipe.data, texts)
    preset = resolve_spec(recipe, tokenizer)
    assert preset == families.preset(request.param)
    objective = build_objective(recipe, preset, tokenizer, texts)
    state = TrainState.build(Run(folder), recipe, tokenizer, objective, build(preset))
    losses = [take_step(state).loss for _ in range(recipe.steps)]
    return LanguageModel(preset, state.model.eval(), tokenizer), losses


def test_it_learns_its_own_objective(trained: tuple[LanguageModel, list[float]]) -> None:
    _, losses = trained
    first, last = (float(np.mean(part)) for part in (losses[:3], losses[-3:]))
    assert last < first - 0.3, losses


def test_it_answers_as_its_kind_does(trained: tuple[LanguageModel, list[float]]) -> None:
    """Each answer is what follows from whole passes without a state."""
    lm, _ = trained
    with torch.inference_mode():
        match lm.model:
            case Encoder():
                fills_and_embeds(lm)
            case EncoderDecoder():
                translates(lm)
            case VisionEncoder():
                names_digits(lm.model)
            case _:
                goes_on_writing(lm)


def goes_on_writing(lm: LanguageModel) -> None:
    """Greedy, past the windows."""
    assert isinstance(lm.model, CausalModel)
    prompt, ids = ENGLISH[:40], list(ENGLISH[:40].encode())
    for _ in range(24):
        ids.append(int(lm.model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert lm.generate(prompt, max_new_tokens=24, temperature=0.0) == bytes(ids[40:]).decode("utf-8", "replace")
    assert [len(text) for text in lm.generate([prompt, "a"], max_new_tokens=5, temperature=0.0)] == [5, 5]


def translates(lm: LanguageModel) -> None:
    """Greedy: every next token is the likeliest after the source and what is written."""
    assert isinstance(lm.model, EncoderDecoder)
    if lm.spec.name == "t5-tiny":  # whose sentinels begin and end its targets, by the ids themselves
        source, start, end = [*ENGLISH[:20].encode(), 262, *ENGLISH[24:40].encode()], 262, 261
        translation = generate.beam_search(lm.model, [source], start, end, Beam(num_beams=1, max_extra_tokens=4))[0]
    else:
        assert lm.tokenizer is not None
        start = end = end_of_text(lm.tokenizer)
        source = [*lm.tokenizer.encode(LINES[0].upper()), end]
        translation = lm.tokenizer.encode(lm.translate(LINES[0].upper(), num_beams=1, max_extra_tokens=4))
        assert lm.translate([LINES[1].upper(), ""], num_beams=2)[1] == ""
    written = [start]
    while len(written) <= len(source) + 4:
        written.append(int(taught(lm.model, torch.tensor([source]), torch.tensor([written]))[0, -1].argmax()))
        if written[-1] == end:
            break
    expected = [token for token in written[1:] if token != end]
    if lm.spec.name != "t5-tiny":
        assert lm.tokenizer is not None
        expected = lm.tokenizer.encode(lm.tokenizer.decode(expected))
    assert translation == expected


def fills_and_embeds(lm: LanguageModel) -> None:
    """The likeliest byte in a hidden place, and a vector of length 1 for each text."""
    assert isinstance(lm.model, Encoder) and lm.tokenizer is not None
    before, after = ENGLISH[:30], ENGLISH[31:60]
    logits = lm.model(torch.tensor([[*before.encode(), 256, *after.encode()]])).logits[0, 30, :256]
    (guesses,) = lm.fill(f"{before}[MASK]{after}", top=3)
    assert [guess.token for guess in guesses] == [lm.tokenizer.token(id) for id in logits.topk(3).indices.tolist()]
    assert guesses[0].probability == pytest.approx(logits.softmax(-1).max().item(), rel=1e-4)
    vectors = lm.embed([before, after])
    mean = lm.model(torch.tensor([list(before.encode())])).hidden[0].mean(0)
    assert distance(vectors[0], mean / mean.norm()) < 1e-4
    assert vectors.norm(dim=1).tolist() == pytest.approx([1, 1], abs=1e-5)


def names_digits(model: VisionEncoder) -> None:
    """Far more often right than one in ten."""
    images, labels = map(torch.from_numpy, load_digits())
    assert (model(images.float()[:, None]).logits.argmax(-1) == labels).float().mean() > 0.4
