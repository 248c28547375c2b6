"""Classification reports with scikit-learn's scores, and errors and correlations of regression outputs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from archetype.data.example_counts import ALL_WHOLE, ExampleCounts
from archetype.table import Table

MAX_COLUMNS = 12  # with more classes, the confusion matrix is not printed


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class, or the average of these scores over classes.

    Attributes:
        precision: fraction of the examples predicted as this class that belong to it; 0 without such predictions.
        recall: fraction of the examples of this class that are predicted as this class; 0 without such examples.
        f1: harmonic mean of precision and recall.
        support: number of examples of this class.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassReport:
    """Classification report with the same scores as scikit-learn's.

    Attributes:
        accuracy: fraction of examples with the right class.
        classes: scores by class name.
        macro: unweighted mean over classes.
        weighted: mean over classes weighted by support.
        confusion: number of examples by true class and predicted class; zeros are left out.
        loss: mean cross-entropy per example, in nats; None without probabilities.
        examples: number of truncated texts, and of words left out.
    """

    accuracy: float
    classes: dict[str, ClassScore]
    macro: ClassScore
    weighted: ClassScore
    confusion: dict[str, dict[str, int]]
    loss: float | None = None
    examples: ExampleCounts = ALL_WHOLE

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rows = [*self.classes.items(), ("macro avg", self.macro), ("weighted avg", self.weighted)]
        cells = [[n, f"{s.precision:.2f}", f"{s.recall:.2f}", f"{s.f1:.2f}", f"{s.support:,}"] for n, s in rows]
        cells.insert(len(self.classes), ["accuracy", "", "", f"{self.accuracy:.2f}", f"{self.macro.support:,}"])
        tables = [Table(("class", "precision", "recall", "f1-score", "support"), cells)]
        if len(self.classes) <= MAX_COLUMNS:
            counts = [[name, *(f"{self.confusion[name].get(o, 0):,}" for o in self.classes)] for name in self.classes]
            tables.append(Table(("true class, by predicted class", *self.classes), counts))
        loss = [] if self.loss is None else [f"loss {self.loss:.4f}"]
        return "\n\n".join([*map(str, tables), *loss, *self.examples.lines()])


@dataclass(frozen=True)
class ValueReport:
    """Regression report.

    Attributes:
        pearson: Pearson correlation; None if either side is constant.
        spearman: rank correlation with mean ranks for ties; None if either side is constant.
        examples: number of truncated texts.
    """

    mean_squared_error: float
    pearson: float | None
    spearman: float | None
    num_values: int
    examples: ExampleCounts = ALL_WHOLE

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        correlations = ["" if value is None else f"{value:.4f}" for value in (self.pearson, self.spearman)]
        row = [f"{self.num_values:,}", f"{self.mean_squared_error:.4f}", *correlations]
        table = Table(("values", "mean squared error", "Pearson", "Spearman"), [row], text_columns=0)
        return "\n\n".join([str(table), *self.examples.lines()])


def class_report(
    expected: Sequence[str],
    predicted: Sequence[str],
    loss: float | None = None,
    examples: ExampleCounts = ALL_WHOLE,
) -> ClassReport:
    """Compare predicted with true classes. `loss` is the mean cross-entropy per example."""
    counts = Counter(zip(expected, predicted, strict=True))
    support, num_predicted = Counter(expected), Counter(predicted)
    classes = {}
    for name in sorted(support.keys() | num_predicted.keys()):
        num_right = counts[name, name]
        precision, recall = num_right / max(1, num_predicted[name]), num_right / max(1, support[name])
        # the harmonic mean, without a case for precision and recall of 0
        f1 = 2 * num_right / (num_predicted[name] + support[name])
        classes[name] = ClassScore(precision, recall, f1, support[name])
    total = len(expected)
    macro = _mean(classes, dict.fromkeys(classes, 1 / len(classes)), total)
    weighted = _mean(classes, {name: support[name] / total for name in classes}, total)
    confusion = {a: {b: counts[a, b] for b in classes if counts[a, b]} for a in classes}
    accuracy = sum(counts[name, name] for name in classes) / total
    return ClassReport(accuracy, classes, macro, weighted, confusion, loss, examples)


def value_report(
    expected: Sequence[float],
    predicted: Sequence[float],
    examples: ExampleCounts = ALL_WHOLE,
) -> ValueReport:
    error = float(((np.asarray(expected) - np.asarray(predicted)) ** 2).mean())
    correlations = correlation(expected, predicted), rank_correlation(expected, predicted)
    return ValueReport(error, *correlations, len(expected), examples)


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return the Pearson correlation of two sequences; None if either is constant."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    # ptp: the range, which is 0 if all values are equal
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else None


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return the Spearman rank correlation of two sequences; None if either is constant."""
    return correlation(_ranks(np.asarray(x, dtype=np.float64)), _ranks(np.asarray(y, dtype=np.float64)))


def _ranks(values: npt.NDArray[np.float64]) -> list[float]:
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices].tolist()  # ties share their mean rank


def _mean(classes: dict[str, ClassScore], weights: dict[str, float], total: int) -> ClassScore:
    precision, recall, f1 = (
        sum(weights[name] * getattr(score, field) for name, score in classes.items())
        for field in ("precision", "recall", "f1")
    )
    return ClassScore(precision, recall, f1, total)
