"""Held-out parts of a text: from everywhere in it, so that each of its kinds is measured, or its end."""

import random
import string
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from archetype.data.held_out import LONGEST, NUM_STRETCHES, held_out_lines, split
from archetype.errors import DataError
from archetype.io.yaml import read_mapping
from archetype.training.datasets import PairData, TextData
from archetype.training.loop import run
from archetype.training.recipe import Recipe, read_recipe
from archetype.training.setup import resume, start
from tests.helpers.examples import every

CPU = torch.device("cpu")


def joined(generator: random.Random, sizes: list[int]) -> str:
    """Parts of some sizes, each of letters of its own, in lines of any length."""
    parts = []
    for letters, size in zip(string.ascii_letters, sizes, strict=False):
        ends = ["\n"] * generator.choice([0, 1, 3])
        parts.append("".join(generator.choices([letters * generator.randint(1, 90), *ends], k=size))[:size])
    return "".join(parts)


@pytest.mark.parametrize("seed", every(8, range(40)))
def test_each_kind_of_a_joined_text_is_held_out_by_its_share(seed: int) -> None:
    generator = random.Random(seed)
    sizes = [generator.randint(20_000, 60_000) for _ in range(generator.randint(2, 6))]
    text, fraction = joined(generator, sizes), generator.choice([0.05, 0.1, 0.3])
    training, held_out = split(text, fraction, "everywhere")
    assert sorted(training + held_out) == sorted(text) and len(held_out) == pytest.approx(fraction * len(text), rel=0.1)
    for letter in set(text) - {"\n"}:
        share = held_out.count(letter) / text.count(letter)
        assert 0.3 * fraction < share < 2.5 * fraction, letter
    assert split(text, fraction, "end")[1] == text[round(len(text) * (1 - fraction)) :]  # the last kinds alone


def test_stretches_are_whole_lines_where_lines_are_short() -> None:
    lines = [f"line {number} of a text\n" for number in range(20_000)]
    training, held_out = split("".join(lines), 0.1, "everywhere")
    assert sorted((training + held_out).splitlines(keepends=True)) == sorted(lines)
    numbers = [int(line.split()[1]) for line in held_out.splitlines()]
    assert sum(after != number + 1 for number, after in pairwise(numbers)) == NUM_STRETCHES - 1
    assert split("a" * 10 * LONGEST * 100, 0.1, "everywhere")[1] == "a" * LONGEST * 100


def test_a_text_with_the_period_of_the_stretches_is_held_out_by_the_shares_of_its_kinds() -> None:
    chapter = "".join(letter * 5_000 for letter in "abcd")
    held_out = split(chapter * NUM_STRETCHES, 0.1, "everywhere")[1]
    assert all(0.15 < held_out.count(letter) / len(held_out) < 0.35 for letter in "abcd")


@pytest.mark.parametrize("where", ["everywhere", "end"])
def test_a_short_text_is_cut_at_its_end_and_one_too_short_refused(where: str) -> None:
    assert split("abcdefghij" * 100, 0.1, where)[1] == "abcdefghij" * 10  # type: ignore[arg-type]
    with pytest.raises(DataError, match="text: has 2 characters, too few for a validation part"):
        split("ab", 0.1, where)  # type: ignore[arg-type]


def test_pairs_are_held_out_from_everywhere_in_their_files() -> None:
    lines = [str(number) for number in range(100)]
    texts = {"source": "\n".join(lines), "target": "\n".join(reversed(lines))}
    training, (sources, targets) = PairData().sides(texts)
    assert sources == [str(10 * n + 5) for n in range(10)] and targets == [str(99 - int(line)) for line in sources]
    assert sorted(training[0] + sources, key=int) == lines and not {*sources} & {*training[0]}
    assert PairData(split="end").sides(texts)[1][0] == lines[90:]
    assert PairData().training_texts(texts)[0].count("\n") == 89
    assert [len(held_out_lines(count, 0.1, "everywhere")) for count in (3, 10, 1009)] == [0, 1, 101]


def test_a_run_keeps_the_split_that_it_began_with(recipe: Recipe, tmp_path: Path) -> None:
    hashes = {}
    for where in ("everywhere", "end"):
        data = recipe.data.replace(split=where)
        state = start(tmp_path / where, recipe.replace(data=data, steps=2, dtype="float32"), CPU)
        assert run(state, lambda event: None) is None
        hashes[where] = state.objective.fingerprint
        assert read_mapping(state.run.recipe_file)["data"]["split"] == where
        assert resume(tmp_path / where, CPU).objective.fingerprint == hashes[where]
    assert hashes["everywhere"] != hashes["end"]
    assert read_recipe(tmp_path / "everywhere" / "recipe.yaml").data == TextData.parse(
        {"text": list(recipe.data.files()), "tokenizer": "bytes"}
    )
