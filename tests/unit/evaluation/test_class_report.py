"""The reports of classes and values equal scikit-learn's and scipy's."""

import random

import numpy as np
import pytest

from archetype.evaluation.class_report import class_report, value_report


def test_the_report_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import classification_report, confusion_matrix  # takes seconds to load

    drawn = random.Random(0)
    expected = [drawn.choice("aabc") for _ in range(200)]
    predicted = [name if drawn.random() < 0.6 else drawn.choice("abd") for name in expected]  # d is never right
    report = class_report(expected, predicted)
    theirs = classification_report(expected, predicted, output_dict=True, zero_division=0)
    assert report.accuracy == theirs["accuracy"]
    scores = report.classes | {"macro avg": report.macro, "weighted avg": report.weighted}
    for name, score in scores.items():
        for ours, field in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score"), ("support",) * 2):
            assert abs(getattr(score, ours) - theirs[name][field]) < 1e-12, (name, field)
    scores_printed, confusion_printed = str(report).split("\n\n")
    printed = classification_report(expected, predicted, zero_division=0).split()
    assert scores_printed.split()[-15:] == printed[-15:]  # the averages, as they are printed
    counts = confusion_matrix(expected, predicted)
    assert [[report.confusion[a].get(b, 0) for b in "abcd"] for a in "abcd"] == counts.tolist()
    assert [line.split()[1:] for line in confusion_printed.splitlines()[1:]] == counts.astype(str).tolist()


def test_values_are_compared_as_by_scipy() -> None:
    from scipy import stats

    drawn = np.random.default_rng(0)
    expected, predicted = drawn.integers(5, size=60).astype(float), drawn.integers(5, size=60) + drawn.random(60) // 0.5
    report = value_report(expected.tolist(), predicted.tolist())
    assert report.mean_squared_error == pytest.approx(((expected - predicted) ** 2).mean())
    assert report.pearson == pytest.approx(stats.pearsonr(expected, predicted)[0])
    assert report.spearman == pytest.approx(stats.spearmanr(expected, predicted)[0])  # with equal ranks
    assert value_report([1.0, 1.0], [1.0, 2.0]).pearson is None
