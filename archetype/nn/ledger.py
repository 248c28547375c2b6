"""Ledger of a transplant: the origin of each tensor of the new model, and the promise for its output."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

How = Literal["kept", "cut", "grown", "merged", "copied", "new"]
DRAWN: How = "new"


class Start(IntEnum):
    """What is promised of a new part's output, compared with the donor's for the same input. The worst one counts."""

    SAME = 0
    ROUNDED = 1
    CHANGED = 2

    @property
    def words(self) -> str:
        return ("the same bits", "the same up to rounding", "changed")[self]


@dataclass(frozen=True)
class Taken:
    """Where a tensor of the new model comes from.

    Attributes:
        how: kept as it is; cut to fewer or grown to more entries; merged from several or computed from one; copied from
            one with another role; or new.
        sources: names of the donor's tensors.
        note: how new entries were drawn, or how several were merged.
    """

    how: How
    sources: tuple[str, ...] = ()
    note: str = ""


@dataclass
class Ledger:
    """Origin of every tensor, and the promise for the output."""

    tensors: dict[str, Taken] = field(default_factory=dict)
    starts: dict[str, tuple[Start, str]] = field(default_factory=dict)  # by part: the promise, and why
    asked: set[str] = field(default_factory=set)  # subjects of which a part had to choose a way

    def promise(self, place: str, start: Start, why: str = "") -> None:
        before = self.starts.get(place, (Start.SAME, ""))[0]
        if start > before or place not in self.starts:
            self.starts[place] = start, why

    def require(self, place: str, condition: object, why: str) -> None:
        """Promise a changed output for this reason unless the condition holds."""
        if not condition:
            self.promise(place, Start.CHANGED, why)

    def forget(self, place: str) -> None:
        """Remove the promises of a part and of all parts inside of it, whose output is not used."""
        self.starts = {at: start for at, start in self.starts.items() if not f"{at}.".startswith(f"{place}.")}

    @property
    def start(self) -> Start:
        return max((start for start, _ in self.starts.values()), default=Start.SAME)
