"""Results of two arms that a decision rule reads, and the resulting verdict."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from archetype.spec.base import Positive
from archetype.spec.errors import invalid
from archetype.studies.statistics import Interval

SHOWN, NO_DIFFERENCE, NOT_SHOWN = "shown", "no difference shown", "not shown at this scale"
DIRECTION, UNCALIBRATED = "direction only, no verdict", "no verdict without calibration"
CONTROL_FAILED = "control failed"  # prefix of a verdict's reason
NOT_RUN = "not run"
ALPHA = 0.05
LEAST_PAIRS = 6  # with fewer pairs a sign-flip test cannot reach 0.05
ROUNDING = 1e-5  # relative difference of two losses of the same text that the order of sums can make


@dataclass(frozen=True)
class Margin:
    """Smallest difference of interest: absolute, or a share of the control's mean."""

    value: float
    is_share: bool

    def of(self, control: float) -> float:
        return self.value * abs(control) if self.is_share else self.value


def read_margin(value: "float | str") -> Margin:
    # "1%" is a share, 0.02 a number
    return Margin(float(value[:-1]) / 100, True) if isinstance(value, str) else Margin(value, False)


PERCENT = r"^\d+(\.\d+)?%$"


def _check_percent(value: Any) -> Any:
    if isinstance(value, str) and not re.match(PERCENT, value):
        invalid("", f"{value!r:.40} is neither a number nor a percentage", "write it as 0.02 or 1%")
    return value


MarginText = Annotated[Positive | Annotated[str, Field(pattern=PERCENT)], BeforeValidator(_check_percent)]


@dataclass(frozen=True)
class Evidence:
    """Metric values of the two compared arms, by seed.

    Attributes:
        treated: values of the arm that is compared with the control.
        tuning_is_interior: whether no arm's best trial is at the edge of the grid.
        failed_control: why the control failed; empty if it succeeded.
        unmeasured: description of the runs without a finite value, whose pairs are left out; empty if all are finite.
        by_arm: values of all arms, for slopes across arms.
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
        """Treated arm's value minus the control's, by seed; 0 within rounding."""
        pairs = zip(self.control, self.treated, strict=True)
        return [0.0 if abs(b - a) <= ROUNDING * abs(a) else b - a for a, b in pairs]


@dataclass(frozen=True)
class Verdict:
    """Verdict on a part, with the statistics behind it.

    Attributes:
        verdict: shown, no difference shown, or not shown at this scale.
        effect: mean paired difference, or slope, with its 95 % interval.
        interval90: the 90 % interval, used for equivalence.
        margin: smallest difference of interest, in the metric's unit.
        p: p-value of the deciding test.
        sign_flip_p: p-value of the sign-flip permutation test.
        adjusted_p: `p` after Holm's correction within the study.
        detectable: smallest true effect that this many pairs detect with 80 % power.
        deviation: standard deviation of the paired differences.
        better_share: fraction of all pairs of seeds in which the treated arm is better.
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
