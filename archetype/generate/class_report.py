"""How well classes are told apart: precision, recall and F1 of each, as in scikit-learn's report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from archetype.table import Table


@dataclass(frozen=True)
class ClassScore:
    """Of one class, or of an average over all.

    Attributes:
        precision: share of the examples said to be of the class that are; 0 where there is none.
        recall: share of the examples of the class that are said to be; 0 where there is none.
        f1: their harmonic mean.
        support: examples of the class.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassReport:
    """The scores of every class by name.

    Attributes:
        accuracy: share of all examples whose class is said rightly.
        classes: the score of each class.
        macro: the mean over the classes.
        weighted: the mean over the classes, by their support.
    """

    accuracy: float
    classes: dict[str, ClassScore]
    macro: ClassScore
    weighted: ClassScore

    def __str__(self) -> str:
        rows = [*self.classes.items(), ("macro avg", self.macro), ("weighted avg", self.weighted)]
        cells = [[n, f"{s.precision:.2f}", f"{s.recall:.2f}", f"{s.f1:.2f}", f"{s.support:,}"] for n, s in rows]
        cells.insert(len(self.classes), ["accuracy", "", "", f"{self.accuracy:.2f}", f"{self.macro.support:,}"])
        return str(Table(("class", "precision", "recall", "f1-score", "support"), cells))


def class_report(expected: Sequence[str], predicted: Sequence[str]) -> ClassReport:
    """Compare the classes of examples with those that a model says.

    Args:
        expected: the class of each example.
        predicted: what is said of it.
    """
    right = Counter(name for name, other in zip(expected, predicted, strict=True) if name == other)
    support, said = Counter(expected), Counter(predicted)
    classes = {}
    for name in sorted(support.keys() | said.keys()):
        precision, recall = right[name] / max(1, said[name]), right[name] / max(1, support[name])
        f1 = 2 * right[name] / (said[name] + support[name])
        classes[name] = ClassScore(precision, recall, f1, support[name])
    total = len(expected)
    even = _mean(classes, dict.fromkeys(classes, 1 / len(classes)), total)
    weighted = _mean(classes, {name: support[name] / total for name in classes}, total)
    return ClassReport(right.total() / total, classes, even, weighted)


def _mean(classes: dict[str, ClassScore], weights: dict[str, float], total: int) -> ClassScore:
    precision, recall, f1 = (
        sum(weights[name] * getattr(score, field) for name, score in classes.items())
        for field in ("precision", "recall", "f1")
    )
    return ClassScore(precision, recall, f1, total)
