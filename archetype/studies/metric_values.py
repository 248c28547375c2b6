"""Measure a finished run on test text or unseen synthetic examples."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from archetype.api.causal_lm import CausalLM
from archetype.data.batches import Tokens
from archetype.data.corpus import encode
from archetype.errors import DataError
from archetype.evaluation.score import score
from archetype.io.text import read_text
from archetype.models.build import Model
from archetype.runs.directory import Run, read_run_model
from archetype.spec.edit import put
from archetype.studies.recall import NUM_PAIRS, recalled
from archetype.studies.settings import Metric
from archetype.tokenizers import open_tokenizer
from archetype.training.evaluate import evaluate
from archetype.training.objectives.base import IGNORED
from archetype.training.objectives.synthetic import SyntheticObjective
from archetype.training.recipe import read_recipe
from archetype.training.synthetic import Facts, SyntheticData

TEST_SEED = 2  # seed of synthetic test examples; validation uses held_out_seed
TOKENS_AT_ONCE = 2**13
NUM_PASSAGES = 50  # passages of a test text, resampled for intervals over other texts


@dataclass(frozen=True)
class Measured:
    """Measured value of a metric.

    Attributes:
        value: value over the whole test set.
        loss: test loss in nats.
        correct: correct answers of each example for accuracy on synthetic data. For text, the sum of bits, nats or
            correct tokens over each passage.
        answers: number of answers of each example. For text, the number of bytes or tokens of each passage.
    """

    value: float
    loss: float
    correct: tuple[float, ...] = ()
    answers: tuple[float, ...] = ()


def measure(run: Run, metric: Metric, test: Path | None, device: torch.device) -> Measured:
    """Measure a metric of a finished run.

    Args:
        test: text to measure on (default: examples of the run's synthetic data).

    Raises:
        DataError: the metric does not fit the data or the model.
    """
    model = read_run_model(run, device=device)
    value = _value(run, model, metric, test)
    if metric.minus is None:
        return value
    # the same metric with some fields changed, measured on the same run
    data = metric.replace(minus=None).dump()
    put(data, [f"{path}={json.dumps(changed)}" for path, changed in metric.minus.items()])
    return Measured(value.value - _value(run, model, Metric.parse(data), test).value, value.loss)


def _value(run: Run, model: Model, metric: Metric, test: Path | None) -> Measured:
    data = read_recipe(run.recipe_file).data
    if test is None:
        assert isinstance(data, SyntheticData)
        return _of_drawn_examples(model, data, metric)
    tokenizer, text = open_tokenizer(run.tokenizer_folder), read_text(test)
    if _kind(metric) == "recall":
        right = recalled(model, tokenizer, metric.length or model.spec.context_length)
        return Measured(sum(right) / NUM_PAIRS / len(right), math.nan, right, (float(NUM_PAIRS),) * len(right))
    if _kind(metric) == "task":
        return _of_task(run, metric)
    if metric.positions is None and metric.length is None:
        scored = score(model, tokenizer, text)  # type: ignore[arg-type]
        values = {"bits_per_byte": scored.bits_per_byte, "loss": scored.loss, "accuracy": scored.accuracy}
        summed = scored.is_right if _kind(metric) == "accuracy" else scored.losses
        return _of_passages(values[_kind(metric)], scored.loss, summed)
    if _kind(metric) == "accuracy":
        raise DataError("metric.name", "accuracy cannot be measured by position", "use test.loss")
    ids = encode(tokenizer, text)
    losses = position_losses(model, ids, metric)
    loss = float(losses.mean())
    # mean nats per token -> bits per byte of the whole text
    in_bits = loss / math.log(2) * len(ids) / len(text.encode())
    return _of_passages(in_bits if _kind(metric) == "bits_per_byte" else loss, loss, losses)


def _of_task(run: Run, metric: Metric) -> Measured:
    lm, task = CausalLM.load(run.folder), str(metric.task)
    figures = lm.evaluate_tasks([task], limit=metric.limit)
    ((name, values),) = figures.tasks.items()
    if (accuracy := values.get("acc", next(iter(values.values()), None))) is None:
        raise DataError(f"metric.task: {task}", "has no figure", "use a task with an accuracy")
    count = float(figures.num_questions.get(name, 0))
    return Measured(accuracy, math.nan, (accuracy * count,), (count,))


def _of_passages(value: float, loss: float, summed: torch.Tensor) -> Measured:
    """Build the measurement of a text from sums over passages; sum(correct) / sum(answers) equals `value`.

    Args:
        summed: bits, nats or correctness of each token, (N,).
    """
    passages = summed.double().tensor_split(min(NUM_PASSAGES, len(summed)))
    sums, total = [float(passage.sum()) for passage in passages], float(summed.double().sum())
    tokens = total / value / len(summed) if value and math.isfinite(value) else 1.0  # weight of a token in `answers`
    return Measured(value, loss, tuple(sums), tuple(len(passage) * tokens for passage in passages))


def _kind(metric: Metric) -> str:
    return metric.name.removeprefix("test.")


@torch.inference_mode()
def position_losses(model: Model, ids: Tokens, metric: Metric) -> torch.Tensor:
    """Return the loss in nats of each scored token, (N,). Only the `metric.positions` of a window are scored.

    Windows are placed so that every token after the first `skip` is scored once. Metrics with other positions and the
    same `skip` therefore use the same tokens.
    """
    length = metric.length or model.spec.context_length
    first, last = metric.positions or (length // 2, length)
    if last > model.spec.context_length:
        raise DataError(
            "metric.positions", f"{last} is beyond the context of {model.spec.context_length}", "shorten it"
        )
    # a window begins `first` tokens before the first token that it counts
    width, start = last - first, max(metric.skip, first)
    starts = range(start, len(ids) - width, width)
    if not starts:
        raise DataError("metric", "the test text is shorter than one window", "use a longer text or fewer positions")
    windows = torch.stack([torch.from_numpy(ids[at - first : at + width + 1]).long() for at in starts])  # (N, last + 1)
    losses = []
    for batch in windows.split(max(1, TOKENS_AT_ONCE // last)):
        batch = batch.to(model.device)
        logits = model(batch[:, :-1]).logits[:, first:].float()  # (B, width, V)
        losses.append(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, first + 1 :].flatten(), reduction="none")
        )
    return torch.cat(losses).double()


def _of_drawn_examples(model: Model, data: SyntheticData, metric: Metric) -> Measured:
    data = data.replace(held_out_seed=TEST_SEED, **metric.data)
    objective = SyntheticObjective(data, 64, 0)
    evaluation = evaluate(model, objective, "float32")
    assert evaluation is not None
    if _kind(metric) == "accuracy":
        correct, answers = right_answers(model, objective)
        return Measured(sum(correct) / sum(answers), evaluation.loss, correct, answers)
    match _kind(metric):
        case "loss":
            return Measured(evaluation.loss, evaluation.loss)
        case "bits_per_parameter" if isinstance(data, Facts):
            # a fact has two answers; the loss (nats per answer) is what the model does not know of them
            stored = data.bits - 2 * data.num_facts * evaluation.loss / math.log(2)
            return Measured(stored / sum(parameter.numel() for parameter in model.parameters()), evaluation.loss)
        case kind:
            raise DataError("metric.name", f"test.{kind} cannot be measured on {data.kind} data", "use test.loss")


@torch.inference_mode()
def right_answers(model: Model, objective: SyntheticObjective) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of correct answers and the number of all answers in each validation example."""
    correct: list[int] = []
    answers: list[int] = []
    for index in range(objective.num_validation_batches):
        batch = tuple(tensor.to(model.device) for tensor in objective.validation_batch(index))
        inputs, targets = objective.inputs_and_targets(batch)
        is_answer = targets != IGNORED
        is_right = (model(**inputs).logits.argmax(-1) == targets) & is_answer
        correct += is_right.sum(1).tolist()
        answers += is_answer.sum(1).tolist()
    return tuple(correct), tuple(answers)
