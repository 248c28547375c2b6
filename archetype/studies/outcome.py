"""The outcome of a check of a claim: whether the claim holds, a sentence, and the numbers and pictures behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypedDict


@dataclass(frozen=True)
class Control:
    """A mistake made on purpose. A check that does not see it says nothing.

    Args:
        name: the mistake.
        error: of the check with the mistake in it.
        must_exceed: the error from which on the mistake is seen.
    """

    name: str
    error: float
    must_exceed: float

    @property
    def is_seen(self) -> bool:
        """Whether the check told the mistake from the truth."""
        return self.error > self.must_exceed


@dataclass(frozen=True)
class Curve:
    """One line of a picture. Curves with equal axes stand in one picture.

    Args:
        label: of the line.
        x: where it was measured.
        y: what was measured there.
        x_name: of the horizontal axis, with its unit.
        y_name: of the vertical axis, with its unit.
        log_x: whether the horizontal axis is logarithmic.
        log_y: whether the vertical axis is.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    x_name: str = ""
    y_name: str = ""
    log_x: bool = False
    log_y: bool = False


class Axes(TypedDict, total=False):
    """The axes that several curves share; as those of `Curve`."""

    x_name: str
    y_name: str
    log_x: bool
    log_y: bool


@dataclass(frozen=True)
class Outcome:
    """The result of a check.

    Args:
        holds: whether the part of the claim holds within the tolerances that were fixed beforehand.
        sentence: what was seen, in one sentence with its numbers; where the claim does not hold, what holds instead.
        values: every number by name.
        controls: mistakes made on purpose.
        curves: for a picture.
    """

    holds: bool
    sentence: str
    values: Mapping[str, float] = field(default_factory=dict)
    controls: tuple[Control, ...] = ()
    curves: tuple[Curve, ...] = ()

    @property
    def is_void(self) -> bool:
        """Whether a mistake made on purpose was not seen, so that nothing follows from the check."""
        return not all(control.is_seen for control in self.controls)

    def checked(self) -> "Outcome":
        """The outcome itself, or where it is void one that does not hold and says why."""
        missed = next((control for control in self.controls if not control.is_seen), None)
        if missed is None:
            return self
        reason = f"void: {missed.name} gives {missed.error:.3g}, which should exceed {missed.must_exceed:.3g}"
        return replace(self, holds=False, sentence=f"{reason}; {self.sentence}")
