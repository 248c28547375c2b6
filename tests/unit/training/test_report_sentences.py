"""The sentences at the head of a run's page say what its metrics say."""

import pytest

from archetype import families
from archetype.training.recipe import Recipe
from archetype.training.report_sentences import sentences

TINY = families.preset("llama-tiny")
FALLING, FLAT = [5.0, 4.0, 3.5, 3.2, 3.0], [5.0, 3.0, 2.995, 2.99, 2.99]
RISING = [5.0, 3.0, 3.1, 3.2, 3.3]


def told(held_out: list[float], training: list[float] | None = None, steps: int = 50) -> list[str]:
    training = [5.0] * 50 if training is None else training
    lines = [{"step": step + 1, "loss": loss, "num_targets": 100} for step, loss in enumerate(training)]
    lines += [{"step": 10 * (number + 1), "validation_loss": loss} for number, loss in enumerate(held_out)]
    return sentences(Recipe(steps=steps, data={"text": ["in/a.txt", "b.txt"]}), TINY, 123, lines)


@pytest.mark.parametrize(("losses", "end"), [
    (FALLING, "The validation loss was still falling: by 0.500 nats since step 30."),
    (FLAT, "The validation loss was no longer falling: it changed by less than 1% since step 30."),
    (RISING, "Since step 20 the validation loss has risen by 10.0%: more training made it worse."),
])  # fmt: skip
def test_the_end_of_a_loss_is_told(losses: list[float], end: str) -> None:
    assert told(losses)[-1] == end
    best = f"{min(losses):.3f} at step {10 * (losses.index(min(losses)) + 1)}"
    assert told(losses)[2] == f"The best validation loss is {best}."


def test_an_end_is_told_from_three_measurements_on() -> None:
    assert told([5.0, 4.0, 3.0])[-1] == "The validation loss was still falling: by 1.000 nats since step 20."
    assert not any("falling" in sentence for sentence in told([5.0, 4.0]))


def test_what_was_trained_and_on_how_much_is_told() -> None:
    first, loss, *_, end = told([], [6.0 - number / 50 for number in range(50)], steps=80)
    assert first == (
        "llama-tiny, a decoder of 123 parameters, was trained on a.txt and 1 more: 50 of 80 steps, 5,000 predictions."
    )
    assert loss.startswith("The training loss went from 6.0") and end.startswith("The training loss was still falling")
    assert "all 50 steps" in told(FALLING)[0]
    assert told([], []) == [
        "llama-tiny, a decoder of 123 parameters, was trained on a.txt and 1 more: 0 of 50 steps, 0 predictions."
    ]
    assert "generated examples of recall" in sentences(Recipe(data={"kind": "recall"}), TINY, 1, [])[0]
