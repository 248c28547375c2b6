"""The checks of the claims by name; the first part of a name is the file of `archetype/studies/checks` that has it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal

from archetype.errors import SpecError, nearest
from archetype.studies import checks
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
        name: `FILE.NAME`, with the file of `archetype/studies/checks` that it stands in.
        claim: its number.
        part: of the claim.
        kind: see `Check`.
    """

    def register(measure: Callable[[bool], Outcome]) -> Callable[[bool], Outcome]:
        _CHECKS[name] = Check(name, claim, part, kind, measure)
        return measure

    return register


def all_checks() -> Mapping[str, Check]:
    """Every check by name, by claim and part."""
    for module in iter_modules(checks.__path__):
        if not module.name.startswith("_"):
            import_module(f"{checks.__name__}.{module.name}")
    return dict(sorted(_CHECKS.items(), key=lambda item: (item[1].claim, item[1].part, item[0])))


def find(name: str) -> Check:
    """The check of that name.

    Raises:
        SpecError: there is none.
    """
    file = name.partition(".")[0]
    if file in {module.name for module in iter_modules(checks.__path__)}:
        import_module(f"{checks.__name__}.{file}")
    if name not in _CHECKS:
        raise SpecError("check", f"there is none called {name!r:.80}", nearest(name, list(all_checks())))
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
