"""Register checks of claims by name: functions in the folder `checks` next to an experiment file."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from archetype.api.extension import one_line_failure
from archetype.errors import ArchetypeError, SpecError, nearest
from archetype.studies.outcome import Outcome

CheckKind = Literal["identity", "analytic", "simulation", "initialization", "timing"]


class Busy(ArchetypeError):
    """Other work keeps the machine too busy for a meaningful timing."""


@dataclass(frozen=True)
class Check:
    """Check of one part of a claim, without training.

    Args:
        name: name in the experiment file, such as `rope.shift`.
        kind: identity, analytic, simulation, initialization (of untrained models) or timing.
        measure: function `(quick) -> Outcome`; with `quick`, a smaller size that takes about a second.
    """

    name: str
    claim: int
    part: str
    kind: CheckKind
    measure: Callable[[bool], Outcome]

    @property
    def title(self) -> str:
        return (self.measure.__doc__ or "").partition("\n")[0]


_CHECKS: dict[str, Check] = {}


def check(
    name: str, claim: int, part: str, kind: CheckKind = "identity"
) -> Callable[[Callable[[bool], Outcome]], Callable[[bool], Outcome]]:
    """Return a decorator that registers a function `(quick) -> Outcome` as a check.

    The first line of the function's docstring is the title of the check.

    Args:
        name: `FILE.NAME`, with FILE in the folder `checks`.
    """

    def register(measure: Callable[[bool], Outcome]) -> Callable[[bool], Outcome]:
        _CHECKS[name] = Check(name, claim, part, kind, measure)
        return measure

    return register


def load_checks(folder: Path) -> Mapping[str, Check]:
    """Import the Python files in `checks` next to an experiment file, which register their checks.

    A file is imported as module FOLDER.checks.FILE, so that other checks can import it. A file whose name begins with
    an underscore is imported only if a check imports it.

    Args:
        folder: folder of the experiment file.

    Returns:
        All checks in these files by name, ordered by claim and part; empty without a folder `checks`.

    Raises:
        ArchetypeError: importing a file fails, or another package has the folder's name.
    """
    # a relative folder such as `.` has no name
    folder = folder.resolve()
    files = {f"{folder.name}.checks.{file.stem}": file for file in sorted(folder.glob("checks/[!_]*.py"))}
    sys.path.insert(0, str(folder.parent))
    try:
        for name, file in files.items():
            with one_line_failure(file, "fix the check"):
                # an imported package of the same name would otherwise be searched for the checks
                paths = getattr(import_module(folder.name), "__path__", ())
                if folder not in [Path(path).resolve() for path in paths]:
                    raise SpecError("", f"another package has the name {folder.name}", "rename the folder")
                import_module(name)
    finally:
        sys.path.remove(str(folder.parent))
    loaded = [item for item in _CHECKS.items() if item[1].measure.__module__ in files]
    return dict(sorted(loaded, key=lambda item: (item[1].claim, item[1].part, item[0])))


def find(name: str) -> Check:
    """Return a loaded check by name.

    Raises:
        SpecError: no check has this name.
    """
    if name not in _CHECKS:
        remedy = nearest(name, _CHECKS) if _CHECKS else "write it in the folder `checks` next to the experiment file"
        raise SpecError("check", f"there is no check {name!r:.80}", remedy)
    return _CHECKS[name]


def run(name: str, *, quick: bool) -> Outcome:
    """Run a check. If it misses a deliberate mistake, its outcome does not hold and names the mistake.

    A timing check never holds in quick mode or on a busy machine.

    Raises:
        SpecError: the check does not exist.
    """
    chosen = find(name)
    try:
        outcome = chosen.measure(quick).checked()
    # on a busy machine a time means little, so the check does not hold
    except Busy as error:
        return Outcome(False, f"refused: {error}")
    if quick and chosen.kind == "timing":
        return replace(outcome, holds=False, sentence=f"too small for a verdict: {outcome.sentence}")
    return outcome
