"""Checks of claims by name: functions in the folder `checks` beside an experiment file, which register themselves."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from archetype.api.extension import one_line_failure
from archetype.errors import SpecError, nearest
from archetype.studies.outcome import Outcome
from archetype.studies.timing import Busy

CheckKind = Literal["identity", "analytic", "simulation", "initialization", "timing"]


@dataclass(frozen=True)
class Check:
    """A part of a claim that is settled without training.

    Args:
        name: as an experiment file says it, such as `rope.shift`.
        claim: its number.
        part: of the claim.
        kind: an identity; arithmetic; a simulation; measured on models that are not trained; or a matter of time.
        measure: runs it; with `quick` in a smaller size, of a second or so.
    """

    name: str
    claim: int
    part: str
    kind: CheckKind
    measure: Callable[[bool], Outcome]

    @property
    def title(self) -> str:
        """The check in one line."""
        return (self.measure.__doc__ or "").partition("\n")[0]


_CHECKS: dict[str, Check] = {}


def check(
    name: str, claim: int, part: str, kind: CheckKind = "identity"
) -> Callable[[Callable[[bool], Outcome]], Callable[[bool], Outcome]]:
    """Function decorator: the check of a part of a claim, `(quick) -> Outcome`; its docstring says what is checked.

    Args:
        name: `FILE.NAME`, with the file of the folder `checks` that it stands in.
        claim: its number.
        part: of the claim.
        kind: see `Check`.
    """

    def register(measure: Callable[[bool], Outcome]) -> Callable[[bool], Outcome]:
        _CHECKS[name] = Check(name, claim, part, kind, measure)
        return measure

    return register


def load_checks(folder: Path) -> Mapping[str, Check]:
    """Import the Python files of `checks` beside an experiment file, each of which registers its checks.

    A file is the module FOLDER.checks.FILE, by which the others may import it. Names with an underscore first are left
    to them.

    Args:
        folder: of the experiment file, as the user named it.

    Returns:
        All checks of these files by name, in the order of claims and parts; none where there is no folder `checks`.

    Raises:
        ArchetypeError: a file fails, with the line that failed, or another package has the folder's name.
    """
    folder = folder.resolve()
    files = {f"{folder.name}.checks.{file.stem}": file for file in sorted(folder.glob("checks/[!_]*.py"))}
    sys.path.insert(0, str(folder.parent))
    try:
        for name, file in files.items():
            with one_line_failure(file, "fix the check"):
                places = getattr(import_module(folder.name), "__path__", ())
                if folder not in [Path(place).resolve() for place in places]:
                    raise SpecError("", f"another package is called {folder.name}", "rename the folder")
                import_module(name)
    finally:
        sys.path.remove(str(folder.parent))
    loaded = [item for item in _CHECKS.items() if item[1].measure.__module__ in files]
    return dict(sorted(loaded, key=lambda item: (item[1].claim, item[1].part, item[0])))


def find(name: str) -> Check:
    """The check of that name, among those that were loaded.

    Raises:
        SpecError: there is none.
    """
    if name not in _CHECKS:
        remedy = nearest(name, _CHECKS) if _CHECKS else "write it in the folder `checks` beside the experiment"
        raise SpecError("check", f"there is none called {name!r:.80}", remedy)
    return _CHECKS[name]


def run(name: str, *, quick: bool) -> Outcome:
    """Run a check. Where a mistake made on purpose is not seen, the outcome does not hold and says so.

    Neither does one of time in the smaller size, which only shows that it can be measured, or on a busy machine.

    Args:
        name: such as `rope.shift`.
        quick: a smaller size, of a second or so.

    Raises:
        SpecError: there is no check of that name.
    """
    chosen = find(name)
    try:
        outcome = chosen.measure(quick).checked()
    except Busy as error:
        return Outcome(False, f"refused: {error}")
    if quick and chosen.kind == "timing":
        return replace(outcome, holds=False, sentence=f"too small for a verdict: {outcome.sentence}")
    return outcome
