"""Evidence on two models that are evaluated as they are: pairs of passages of the test text instead of seeds."""

from dataclasses import replace

from archetype.studies.evidence import Evidence
from archetype.studies.settings import Metric
from archetype.studies.store import RunResult

ROUNDING = 1e-5  # relative difference of two losses of the same text that the order of sums can make


def without_seeds(evidence: Evidence, control: RunResult, treated: RunResult, metric: Metric) -> Evidence:
    """Return the evidence with the values of passages, of which differences within rounding count as none.

    Other seeds would repeat the same values. A metric without passages has one value of each model.
    """
    key = metric.key
    pairs = [
        [right / answers for right, answers in zip(*result.examples.get(key, ((), ())), strict=True) if answers]
        for result in (control, treated)
    ]
    before, after = (
        tuple(pair) or (result.values[key],) for pair, result in zip(pairs, (control, treated), strict=True)
    )
    after = tuple(a if abs(b - a) <= ROUNDING * abs(a) else b for a, b in zip(before, after, strict=True))
    return replace(evidence, control=before, treated=after, by_arm={})
