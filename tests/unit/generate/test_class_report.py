"""The report of classes equals scikit-learn's."""

import random

from archetype.generate.class_report import class_report


def test_the_report_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import classification_report  # takes seconds to load

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
    printed = classification_report(expected, predicted, zero_division=0).split()
    assert [*str(report).split()][-15:] == printed[-15:]  # the averages, as they are printed
