"""Combine the verdicts of a part's arms and of a study's parts."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from archetype.studies import statistics
from archetype.studies.decisions import Decision
from archetype.studies.evidence import (
    CONTROL_FAILED,
    DIRECTION,
    NO_DIFFERENCE,
    NOT_RUN,
    NOT_SHOWN,
    SHOWN,
    UNCALIBRATED,
    Evidence,
    Verdict,
)
from archetype.studies.parts import TrainedPart

# for a test without pairs
NOTHING_MEASURED = Verdict(NOT_SHOWN, "", statistics.Interval(math.nan, -math.inf, math.inf))


def study_verdicts(judged: Sequence[tuple[Decision, Evidence]]) -> list[Verdict]:
    """Return the verdicts on a study's tests, with Holm's correction over all tests.

    A failed control, a run without a finite value, or a best trial at the edge of its grid limits the verdict to "not
    shown".
    """
    adjusted = statistics.holm(
        [decision.p_value(evidence) if evidence.control else 1.0 for decision, evidence in judged]
    )
    verdicts = []
    for (decision, evidence), p in zip(judged, adjusted, strict=True):
        verdict = decision.judge(evidence, p) if evidence.control else NOTHING_MEASURED
        # the most serious defect gives the reason
        if evidence.failed_control:
            verdict = replace(verdict, verdict=NOT_SHOWN, reason=f"{CONTROL_FAILED}: {evidence.failed_control}")
        elif evidence.unmeasured:
            verdict = replace(verdict, verdict=NOT_SHOWN, reason=f"diverged: {evidence.unmeasured}")
        elif not evidence.tuning_is_interior:
            reason = "tuning: the best trial of an arm lies at the edge of its grid"
            verdict = replace(verdict, verdict=NOT_SHOWN, reason=reason)
        verdicts.append(verdict)
    return verdicts


def announced(verdict: Verdict, quick: bool, is_calibrated: bool) -> str:
    if quick:
        return DIRECTION
    return verdict.verdict if is_calibrated else UNCALIBRATED


def joint_verdict(settled: Sequence[dict[str, Any]], noun: str) -> str:
    """Combine the verdicts on several parts or arms; `noun` is "parts" or "arms"."""
    verdicts = {outcome["verdict"] for outcome in settled}
    supported = sum(outcome["is_supported"] for outcome in settled)
    if len(verdicts) == 1:
        return str(next(iter(verdicts)))
    if supported == len(settled):
        return SHOWN
    return f"shown in part: only {supported} of {len(settled)} {noun}" if supported else NOT_SHOWN


def whole_verdict(parts: Sequence[dict[str, Any]]) -> str:
    settled = [part for part in parts if part["verdict"] != NOT_RUN]
    if not settled:
        return NOT_RUN
    verdict, left = joint_verdict(settled, "parts"), len(parts) - len(settled)
    return f"{verdict}; {left} of {len(parts)} parts not run" if left else verdict


def verdict_of_arms(control: str, tests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(tests) == 1:
        return {name: tests[0][name] for name in ("verdict", "reason", "is_supported")}
    verdicts = [test["verdict"] for test in tests]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    failed = next((f"; {test['reason']}" for test in tests if test["reason"].startswith(CONTROL_FAILED)), "")
    return {
        "verdict": joint_verdict(tests, "arms"),
        "reason": f"of {len(tests)} arms against {control} {counts}{failed}",
        "is_supported": all(test["is_supported"] for test in tests),
    }


def confirmed(
    part: TrainedPart, verdict: str, reason: str, effect: float, first: str, others: Sequence[tuple[str, Evidence]]
) -> tuple[str, str]:
    """Return the verdict and its reason after checking the other corpora and sizes.

    On each of them, the mean difference must have the same sign, or lie within the margin if no difference was shown.

    Args:
        verdict: verdict on the deciding corpus.
        first: name of the deciding corpus.
    """
    for name, evidence in others:
        mean = float(np.mean(evidence.differences)) if evidence.control else math.nan
        is_within = bool(evidence.control) and abs(mean) < part.decide.margin_of(evidence)
        if (verdict == SHOWN and not mean * effect > 0) or (verdict == NO_DIFFERENCE and not is_within):
            return NOT_SHOWN, f"{name} does not agree; on {first} {reason}"
    return verdict, reason
