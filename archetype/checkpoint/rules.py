"""How a published file's tensors and a model's parameters correspond: one list of data, read in both directions."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from archetype.errors import CheckpointError


@dataclass(frozen=True)
class Rule:
    """One tensor of the file and the parameters that it holds, joined along their first axis.

    `{i}` in the names stands for a layer's number. `transposed` files keep a matrix as (inputs, outputs), where a
    parameter is (outputs, inputs).
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False

    def at(self, layer: int) -> "Rule":
        """The rule for one layer."""
        filled = tuple(name.replace("{i}", str(layer)) for name in self.ours)
        return Rule(self.theirs.replace("{i}", str(layer)), filled, self.transposed)


def rule(theirs: str, *ours: str, transposed: bool = False) -> Rule:
    """Shorthand for a `Rule`."""
    return Rule(theirs, ours, transposed)


def for_model(rules: Iterable[Rule], num_layers: int, parameters: Iterable[str]) -> list[Rule]:
    """The rules of one model: layers filled in, and only what the model has.

    Raises:
        CheckpointError: a parameter has no rule, or more than one.
    """
    present = set(parameters)
    written = [r for template in rules for r in _filled(template, num_layers)]
    kept = [r for r in written if any(name in present for name in r.ours)]
    claimed = [name for r in kept for name in r.ours]
    orphans = sorted(present - set(claimed)) + sorted(name for name in set(claimed) - present)
    if orphans:
        raise CheckpointError(orphans[0], "the family's format has no place for this parameter", "use another family")
    twice = sorted(name for name, count in Counter(claimed).items() if count > 1)
    if twice:
        raise CheckpointError(twice[0], "two weight rules claim this parameter", "this is a mistake in the family")
    return kept


def accounted(rules: list[Rule], tensors: Iterable[str], ignored: Iterable[str]) -> None:
    """Check that every tensor of the file is used exactly once.

    Raises:
        CheckpointError: names what is missing, or what nobody asked for.
    """
    present, wanted = set(tensors), {r.theirs for r in rules}
    patterns = [re.compile(pattern) for pattern in ignored]
    missing = sorted(wanted - present)
    if missing:
        raise CheckpointError(missing[0], f"this tensor is missing{_and_more(missing)}", "is the checkpoint complete?")
    extra = sorted(name for name in present - wanted if not any(p.fullmatch(name) for p in patterns))
    if extra:
        cause = f"the model has no place for this tensor{_and_more(extra)}"
        raise CheckpointError(extra[0], cause, "does config.json describe this checkpoint?")


def _filled(template: Rule, num_layers: int) -> list[Rule]:
    return [template.at(i) for i in range(num_layers)] if "{i}" in template.theirs else [template]


def _and_more(names: list[str]) -> str:
    if len(names) == 1:
        return ""
    shown = ", ".join(names[1:4])
    return f" (and {len(names) - 1} more: {shown}{', ...' if len(names) > 4 else ''})"
