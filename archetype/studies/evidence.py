"""The values of two arms that a decision is about, and the verdict that it gives."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from archetype.spec.base import Positive, invalid
from archetype.studies.statistics import Interval

SHOWN, NO_DIFFERENCE, NOT_SHOWN = "shown", "no difference shown", "not shown at this scale"
DIRECTION, UNCALIBRATED = "direction only, no verdict", "no verdict without calibration"
CONTROL_FAILED = "control failed"  # begins the reason of a verdict
NOT_RUN = "not run"
ALPHA = 0.05
LEAST_PAIRS = 6  # below which a sign-flip test cannot reach 0.05


@dataclass(frozen=True)
class Margin:
    """A difference of interest: a number, or a share of the control's mean."""

    value: float
    is_share: bool

    def of(self, control: float) -> float:
        """In the metric's own unit."""
        return self.value * abs(control) if self.is_share else self.value


def read_margin(value: "float | str") -> Margin:
    """1% is a share, 0.02 a number."""
    return Margin(float(value[:-1]) / 100, True) if isinstance(value, str) else Margin(value, False)


PERCENT = r"^\d+(\.\d+)?%$"


def _check_percent(value: Any) -> Any:
    if isinstance(value, str) and not re.match(PERCENT, value):
        invalid("", f"{value!r:.40} is neither a number nor a percentage", "write it as 0.02 or 1%")
    return value


MarginText = Annotated[Positive | Annotated[str, Field(pattern=PERCENT)], BeforeValidator(_check_percent)]


@dataclass(frozen=True)
class Evidence:
    """The values of the two arms that a decision is about.

    Attributes:
        control: of each seed.
        treated: of the other arm, seed by seed.
        lower_is_better: whether a lower value is.
        tuning_is_interior: whether no arm's best trial lies at the edge of the grid.
        failed_control: why the control does not behave; empty where it does.
        unmeasured: the pairs that are left out, because a run of theirs ended without a finite value; empty where all
            are there.
        by_arm: values of all arms, seed by seed, for slopes.
    """

    control: tuple[float, ...]
    treated: tuple[float, ...]
    lower_is_better: bool = True
    tuning_is_interior: bool = True
    failed_control: str = ""
    unmeasured: str = ""
    by_arm: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def differences(self) -> list[float]:
        """For each seed the other arm's value less the control's."""
        return [b - a for a, b in zip(self.control, self.treated, strict=True)]


@dataclass(frozen=True)
class Verdict:
    """The decision on a part, with the measured values behind it.

    Attributes:
        verdict: shown, no difference shown, or not shown at this scale.
        reason: in one line.
        effect: the mean of paired differences, or a slope, with its interval of 95 %.
        interval90: of the same, of 90 %, where equivalence is tested.
        margin: the smallest difference of interest, in the metric's unit.
        p: of the test that decides.
        sign_flip_p: of the permutation test.
        adjusted_p: after Holm's correction within the study.
        detectable: the smallest true effect that this many pairs see with a chance of 80 %.
        deviation: standard deviation of the paired differences.
        better_share: how often the other arm is better, over all pairs of seeds.
        would_change: what would have changed the verdict.
    """

    verdict: str
    reason: str
    effect: Interval
    interval90: Interval | None = None
    margin: float | None = None
    p: float | None = None
    sign_flip_p: float | None = None
    adjusted_p: float | None = None
    detectable: float | None = None
    deviation: float | None = None
    better_share: float | None = None
    would_change: str = ""
