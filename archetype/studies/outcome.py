"""Outcome of a check: whether the claim holds, the finding in a sentence, measured values and curves."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict


@dataclass(frozen=True)
class Control:
    """Deliberate mistake that a check must detect to prove anything.

    Args:
        error: error that the check measures with the mistake.
        must_exceed: threshold above which the mistake counts as detected.
    """

    name: str
    error: float
    must_exceed: float

    @property
    def is_seen(self) -> bool:
        return self.error > self.must_exceed


@dataclass(frozen=True)
class Curve:
    """Line of a chart. Curves with equal axes share a chart, and axis names include the unit."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    x_name: str = ""
    y_name: str = ""
    log_x: bool = False
    log_y: bool = False


class Axes(TypedDict, total=False):
    """Axes shared by several curves, as in `Curve`."""

    x_name: str
    y_name: str
    log_x: bool
    log_y: bool


@dataclass(frozen=True)
class Outcome:
    """Result of a check.

    Args:
        holds: whether the claim holds within the tolerances fixed beforehand.
        sentence: finding with measured values; if the claim does not hold, the sentence says what holds instead.
    """

    holds: bool
    sentence: str
    values: Mapping[str, float] = field(default_factory=dict)
    controls: tuple[Control, ...] = ()
    curves: tuple[Curve, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether a deliberate mistake was missed, so that the check proves nothing."""
        return not all(control.is_seen for control in self.controls)

    def checked(self) -> "Outcome":
        """Return the outcome. A void outcome becomes one that does not hold and names the missed mistake."""
        missed = next((control for control in self.controls if not control.is_seen), None)
        if missed is None:
            return self
        reason = f"void: {missed.name} gives {missed.error:.3g}, which should exceed {missed.must_exceed:.3g}"
        return replace(self, holds=False, sentence=f"{reason}; {self.sentence}")
