"""Decision rules that turn results of paired runs into a verdict. An experiment file fixes them before any run."""

import math
from abc import abstractmethod
from typing import ClassVar, Literal

import numpy as np

from archetype.spec.base import Finite, Positive
from archetype.spec.kinds import Part, part
from archetype.studies import statistics
from archetype.studies.evidence import (
    ALPHA,
    NO_DIFFERENCE,
    NOT_SHOWN,
    SHOWN,
    Evidence,
    MarginText,
    Verdict,
    read_margin,
)
from archetype.studies.statistics import Interval


class Decision(Part):
    """Base class of decision rules.

    Attributes:
        takes_all_arms: whether one test covers all arms; otherwise each arm is tested against the control.
    """

    takes_all_arms: ClassVar[bool] = False
    kind: str

    @abstractmethod
    def p_value(self, evidence: Evidence) -> float:
        """Return the p-value of the test that decides the verdict, before Holm's correction."""

    @abstractmethod
    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        """Decide the verdict.

        Args:
            adjusted_p: p-value of this test after Holm's correction within the study.
        """

    def margin_of(self, evidence: Evidence) -> float:
        """Return the smallest difference of interest in the metric's unit."""
        return read_margin(getattr(self, "margin", "1%")).of(float(np.mean(evidence.control)))

    def verdict(
        self,
        evidence: Evidence,
        adjusted_p: float,
        is_shown: bool,
        is_reversed: bool,
        would_change: str,
        name: str = SHOWN,
    ) -> Verdict:
        """Build a verdict with the statistics that all rules report."""
        differences = evidence.differences
        effect, pairs = statistics.paired_interval(differences), len(differences)
        # the 90 % interval lies inside the margin exactly if both one-sided tests pass at 5 %
        wide = statistics.paired_interval(differences, 0.9)
        deviation = float(np.std(differences, ddof=1)) if pairs > 1 else math.inf
        detectable = statistics.minimal_detectable_effect(deviation, pairs) if deviation < math.inf else math.inf
        margin, p = self.margin_of(evidence), self.p_value(evidence)
        is_equivalent = -margin < wide.low and wide.high < margin
        if is_shown and (adjusted_p >= ALPHA or pairs < 2):
            result, reason = NOT_SHOWN, f"inconclusive: p is {adjusted_p:.2g} after Holm's correction"
        elif is_shown:
            result, reason = name, f"the mean of {pairs} pairs is {effect.mean:+.4g}"
        # `at_least` claims a difference, and its margin is the claimed number
        elif is_equivalent and pairs > 1 and self.kind != "at_least":
            result, reason = NO_DIFFERENCE, f"the interval of 90 % lies within +-{margin:.3g}"
        elif is_reversed:
            result, reason = NOT_SHOWN, f"reversed: the mean of {pairs} pairs is {effect.mean:+.4g}"
        else:
            result, reason = NOT_SHOWN, f"inconclusive: {pairs} pairs see differences from {detectable:.3g} on"
        lower = statistics.probability_lower(evidence.treated, evidence.control)
        return Verdict(
            result,
            reason,
            effect,
            wide,
            margin,
            p,
            statistics.sign_flip_p(differences),
            adjusted_p,
            detectable,
            deviation,
            lower if evidence.lower_is_better else 1 - lower,
            would_change,
        )


@part
class Difference(Decision):
    """The treated arm is better, or worse, than the control: the 95 % interval lies on that side of zero.

    The sign-flip test must agree.

    Attributes:
        side: claimed side.
        margin: smallest difference of interest, as a number or a share of the control's mean.
    """

    kind: Literal["difference"] = "difference"
    side: Literal["better", "worse"] = "better"
    margin: MarginText = "1%"

    def sign(self, evidence: Evidence) -> int:
        # sign of (other arm - control) if the claim holds
        return -1 if (self.side == "better") == evidence.lower_is_better else 1

    def p_value(self, evidence: Evidence) -> float:
        return statistics.paired_t_p(evidence.differences)

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        interval, sign = statistics.paired_interval(evidence.differences), self.sign(evidence)
        # ends of the interval, positive in the claimed direction
        near, far = sorted((sign * interval.low, sign * interval.high))
        agrees = statistics.sign_flip_p(evidence.differences) < ALPHA
        half = (far - near) / 2
        wider = f"a spread {_times(abs(near + half), half)} as wide"
        change = f"a mean not beyond {sign * half:+.3g} with the same spread, or {wider}"
        other = f"a mean beyond {sign * half:+.3g} with the same spread, or more pairs if the mean stays"
        is_shown = near > 0 and agrees
        return self.verdict(evidence, adjusted_p, is_shown, far < 0, change if is_shown else other)


@part
class Equivalence(Decision):
    """The treated arm is as good as the control: the 90 % interval lies within +- margin (two one-sided tests).

    Attributes:
        margin: a number, or a share of the control's mean.
    """

    kind: Literal["equivalence"] = "equivalence"
    margin: MarginText = "1%"

    def p_value(self, evidence: Evidence) -> float:
        return statistics.equivalence_p(evidence.differences, self.margin_of(evidence))

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        margin, interval = self.margin_of(evidence), statistics.paired_interval(evidence.differences, 0.9)
        is_within = -margin < interval.low and interval.high < margin
        is_beyond = interval.low > margin or interval.high < -margin
        change = f"an interval of 90 % that {'leaves' if is_within else 'lies within'} +-{margin:.3g}"
        return self.verdict(evidence, adjusted_p, is_within, is_beyond, change, NO_DIFFERENCE)


@part
class AtLeast(Decision):
    """The difference (treated arm - control) is at least `than`: its 95 % interval lies beyond this threshold.

    Attributes:
        than: threshold, in the metric's unit or as a share of the control's mean.
        side: whether the difference is above the threshold, or below its negative.
    """

    kind: Literal["at_least"] = "at_least"
    than: MarginText
    side: Literal["above", "below"] = "above"

    def threshold(self, evidence: Evidence) -> float:
        return read_margin(self.than).of(float(np.mean(evidence.control))) * (1 if self.side == "above" else -1)

    def margin_of(self, evidence: Evidence) -> float:
        return abs(self.threshold(evidence))

    def p_value(self, evidence: Evidence) -> float:
        return statistics.paired_t_p(evidence.differences, self.threshold(evidence))

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        threshold, interval = self.threshold(evidence), statistics.paired_interval(evidence.differences)
        is_above = self.side == "above"
        is_shown = interval.low > threshold if is_above else interval.high < threshold
        # the permutation test must agree, as in `Difference`
        is_shown &= statistics.sign_flip_p([d - threshold for d in evidence.differences]) < ALPHA
        is_reversed = interval.high < threshold if is_above else interval.low > threshold
        end = interval.low if is_above else interval.high
        return self.verdict(
            evidence, adjusted_p, is_shown, is_reversed, f"{threshold:+.3g} on the other side of {end:+.3g}"
        )


@part
class Within(Decision):
    """The treated arm's result lies between two bounds: its 95 % interval over seeds lies inside them.

    Attributes:
        low: lower bound.
        high: upper bound.
    """

    kind: Literal["within"] = "within"
    low: Finite
    high: Finite

    def p_value(self, evidence: Evidence) -> float:
        # equivalence to the middle of the bounds, with half their distance as margin
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return statistics.equivalence_p([value - middle for value in evidence.treated], half)

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        interval, claimed = statistics.paired_interval(evidence.treated), f"[{self.low:g}, {self.high:g}]"
        if self.low <= interval.low and interval.high <= self.high:
            result, reason = SHOWN, f"the mean is {interval.mean:.4g}"
        elif interval.high < self.low or interval.low > self.high:
            result, reason = NOT_SHOWN, f"reversed: the mean is {interval.mean:.4g}, outside {claimed}"
        else:
            result, reason = (
                NOT_SHOWN,
                f"inconclusive: [{interval.low:.4g}, {interval.high:.4g}] is not inside {claimed}",
            )
        change = f"an interval that crosses {claimed}"
        return Verdict(result, reason, interval, p=self.p_value(evidence), adjusted_p=adjusted_p, would_change=change)


@part
class SlopeBetween(Decision):
    """The slope of log metric over log x across arms lies between two bounds.

    Attributes:
        x: value of x for each arm.
        low: lower bound of the slope's interval.
        high: upper bound of the slope's interval.
    """

    takes_all_arms: ClassVar[bool] = True
    kind: Literal["slope"] = "slope"
    x: dict[str, Positive]
    low: Finite
    high: Finite

    def fit(self, evidence: Evidence) -> statistics.Slope:
        # (seed, arm)
        repeats = list(zip(*(evidence.by_arm[name] for name in self.x), strict=True))
        return statistics.log_slope(list(self.x.values()), repeats)

    def p_value(self, evidence: Evidence) -> float:
        fit = self.fit(evidence)
        # a bootstrap interval decides, not a test
        return 0.0 if self.low <= fit.low and fit.high <= self.high else 1.0

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        fit = self.fit(evidence)
        effect = Interval(fit.slope, fit.low, fit.high)
        claimed = f"[{self.low:g}, {self.high:g}]"
        if self.low <= fit.low and fit.high <= self.high:
            result, reason = SHOWN, f"the slope is {fit.slope:.3f}"
        elif fit.high < self.low or fit.low > self.high:
            result, reason = NOT_SHOWN, f"reversed: the slope is {fit.slope:.3f}, outside {claimed}"
        else:
            result, reason = NOT_SHOWN, f"inconclusive: the slope's interval is not inside {claimed}"
        return Verdict(result, reason, effect, p=self.p_value(evidence), would_change=f"an interval crossing {claimed}")


@part
class Identity(Decision):
    """Both arms give bit-identical results for every seed."""

    kind: Literal["identity"] = "identity"

    def p_value(self, evidence: Evidence) -> float:
        return float(evidence.control != evidence.treated)

    def judge(self, evidence: Evidence, adjusted_p: float) -> Verdict:
        effect = statistics.paired_interval(evidence.differences)
        num_different = sum(a != b for a, b in zip(evidence.control, evidence.treated, strict=True))
        reason = f"{num_different} of {len(evidence.control)} seeds differ"
        return Verdict(SHOWN if num_different == 0 else NOT_SHOWN, reason, effect, would_change="one seed that differs")


def _times(a: float, b: float) -> str:
    return f"{a / b:.1f} times" if b else "many times"
