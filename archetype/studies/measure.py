"""Measurements of a finished run, on text or examples that it has not seen."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from archetype.data.batches import Tokens
from archetype.data.corpus import encode
from archetype.errors import DataError
from archetype.generate.score import score
from archetype.io.text import read_text
from archetype.models.build import Model
from archetype.runs.directory import Run, read_run_model
from archetype.spec.edit import put
from archetype.studies.settings import Metric
from archetype.tokenizers import open_tokenizer
from archetype.training.evaluate import evaluate
from archetype.training.objectives.base import IGNORED
from archetype.training.objectives.synthetic import SyntheticObjective
from archetype.training.recipe import read_recipe
from archetype.training.synthetic import Facts, SyntheticData

TEST_SEED = 2  # of drawn examples that runs are judged on; those that trials are chosen on have held_out_seed
TOKENS_AT_ONCE = 2**13


@dataclass(frozen=True)
class Measured:
    """The value of a metric.

    Attributes:
        value: over all that was measured.
        correct: of each example how many answers were right, where accuracy is measured on drawn examples.
        answers: of each example how many there are.
    """

    value: float
    correct: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()


def measure(run: Run, metric: Metric, test: Path | None, device: torch.device) -> Measured:
    """The value of a metric, and of each example where it is an accuracy.

    Args:
        run: finished.
        metric: what is measured.
        test: the text that is measured on (absent: examples are drawn, as the run's recipe says).
        device: where the model goes.

    Raises:
        DataError: the metric does not suit the data or the model.
    """
    model = read_run_model(run, device=device)
    value = _value(run, model, metric, test)
    if metric.minus is None:
        return value
    data = metric.replace(minus=None).dump()
    put(data, [f"{path}={json.dumps(changed)}" for path, changed in metric.minus.items()])
    return Measured(value.value - _value(run, model, Metric.parse(data), test).value)


def _value(run: Run, model: Model, metric: Metric, test: Path | None) -> Measured:
    data = read_recipe(run.recipe_file, of_run=True).data
    if test is None:
        assert isinstance(data, SyntheticData)
        return _of_drawn_examples(model, data, metric)
    tokenizer, text = open_tokenizer(run.tokenizer_folder), read_text(test)
    if metric.positions is None and metric.length is None:
        result: Any = score(model, tokenizer, text)  # type: ignore[arg-type]
        return Measured(
            float(
                {"bits_per_byte": result.bits_per_byte, "loss": result.loss, "accuracy": result.accuracy}[_kind(metric)]
            )
        )
    ids = encode(tokenizer, text)
    loss = float(position_losses(model, ids, metric).mean())
    match _kind(metric):
        case "loss":
            return Measured(loss)
        case "bits_per_byte":
            return Measured(loss / math.log(2) * len(ids) / len(text.encode()))
        case _:
            raise DataError("metric.name", "accuracy is not measured by position", "use test.loss")


def _kind(metric: Metric) -> str:
    return metric.name.removeprefix("test.")


@torch.inference_mode()
def position_losses(model: Model, ids: Tokens, metric: Metric) -> torch.Tensor:
    """The loss of every token that counts, each predicted from the same position of a window, in nats.

    Windows follow each other so that every token after the first `skip` counts once: measurements of other positions
    with the same `skip` take the same tokens.
    """
    length = metric.length or model.spec.context_length
    first, last = metric.positions or (length // 2, length)
    if last > model.spec.context_length:
        raise DataError(
            "metric.positions", f"{last} is beyond the context of {model.spec.context_length}", "shorten it"
        )
    width, start = last - first, max(metric.skip, first)
    starts = range(start, len(ids) - width, width)
    if not starts:
        raise DataError("metric", "the test text is shorter than one window", "use a longer text or fewer positions")
    windows = torch.stack([torch.from_numpy(ids[at - first : at + width + 1]).long() for at in starts])
    losses = []
    for rows in windows.split(max(1, TOKENS_AT_ONCE // last)):
        rows = rows.to(model.device)
        logits = model(rows[:, :-1]).logits[:, first:].float()
        losses.append(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, first + 1 :].flatten(), reduction="none")
        )
    return torch.cat(losses).double()


def _of_drawn_examples(model: Model, data: SyntheticData, metric: Metric) -> Measured:
    """The loss or the accuracy on examples of the task, perhaps longer or more distant ones."""
    data = data.replace(held_out_seed=TEST_SEED, **metric.data)
    objective = SyntheticObjective(data, 64, 0)
    if _kind(metric) == "accuracy":
        correct, answers = right_answers(model, objective)
        return Measured(sum(correct) / sum(answers), correct, answers)
    evaluation = evaluate(model, objective, "float32")
    assert evaluation is not None
    match _kind(metric):
        case "loss":
            return Measured(evaluation.loss)
        case "bits_per_parameter" if isinstance(data, Facts):
            stored = data.bits - 2 * data.num_facts * evaluation.loss / math.log(2)
            return Measured(stored / sum(parameter.numel() for parameter in model.parameters()))
        case kind:
            raise DataError("metric.name", f"test.{kind} is for other data than {data.kind}", "use test.loss")


@torch.inference_mode()
def right_answers(model: Model, objective: SyntheticObjective) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """For every held-out example how many of its answers are the likeliest ones, and how many answers it has."""
    correct: list[int] = []
    answers: list[int] = []
    for number in range(objective.num_validation_batches):
        batch = tuple(tensor.to(model.device) for tensor in objective.validation_batch(number))
        inputs, targets = objective.inputs_and_targets(batch)
        is_answer = targets != IGNORED
        is_right = (model(**inputs).logits.argmax(-1) == targets) & is_answer
        correct += is_right.sum(1).tolist()
        answers += is_answer.sum(1).tolist()
    return tuple(correct), tuple(answers)
