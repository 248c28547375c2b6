"""How a published file's tensors and a model's parameters correspond: one list of data, read in both directions."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from archetype.errors import CheckpointError


@dataclass(frozen=True)
class Rule:
    """One tensor of the file and the parameters that it holds, joined along their first axis.

    `{i}` in the names stands for a layer's number. `transposed` files keep a matrix as (inputs, outputs), where a
    parameter is (outputs, inputs). `{e}` in the file's name stands for an expert's number: a parameter that holds all
    experts has a tensor for each in the file, and `expert` is whose this one is. With `heads`, what is joined lies head
    by head: the first head's rows of every parameter, then the second's. `shape` is the tensor's in the file, where it
    keeps a parameter's numbers in the same order and another shape.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    expert: int | None = None
    heads: int = 1
    shape: tuple[int, ...] | None = None

    def at(self, layer: int) -> "Rule":
        """The rule for one layer."""
        filled = tuple(name.replace("{i}", str(layer)) for name in self.ours)
        return replace(self, theirs=self.theirs.replace("{i}", str(layer)), ours=filled)

    def of(self, expert: int) -> "Rule":
        """The rule for one expert."""
        return replace(self, theirs=self.theirs.replace("{e}", str(expert)), expert=expert)

    def part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what this rule speaks of, in a parameter of some shape."""
        return shape if self.expert is None else shape[1:]


def rule(
    theirs: str, *ours: str, transposed: bool = False, heads: int = 1, shape: tuple[int, ...] | None = None
) -> Rule:
    """Shorthand for a `Rule`."""
    return Rule(theirs, ours, transposed, heads=heads, shape=shape)


def linear_rules(theirs: str, ours: str, pairs: Iterable[tuple[str, str]]) -> Iterator[Rule]:
    """Weights and biases, of matrices and of norms, below two prefixes."""
    for one, other in pairs:
        for kind in ("weight", "bias"):
            yield rule(f"{theirs}{one}.{kind}", f"{ours}{other}.{kind}")


def for_model(rules: Iterable[Rule], num_layers: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    """The rules of one model: layers and experts filled in, and only what the model has.

    Args:
        rules: of the family.
        num_layers: of the model.
        shapes: of each of its parameters.

    Raises:
        CheckpointError: a parameter has no rule, or more than one.
    """
    written = [r for template in rules for r in _filled(template, num_layers, shapes)]
    kept = [r for r in written if any(name in shapes for name in r.ours)]
    claimed = [(name, r.expert) for r in kept for name in r.ours]
    names = {name for name, _ in claimed}
    orphans = sorted(shapes.keys() - names) + sorted(names - shapes.keys())
    if orphans:
        raise CheckpointError(orphans[0], "the family's format has no place for this parameter", "use another family")
    twice = sorted(name for (name, _), count in Counter(claimed).items() if count > 1)
    if twice:
        raise CheckpointError(twice[0], "two weight rules claim this parameter", "this is a mistake in the family")
    return kept


def check_all_used(rules: list[Rule], tensors: Iterable[str], ignored: Iterable[str]) -> None:
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


def _filled(template: Rule, num_layers: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    layers = [template.at(i) for i in range(num_layers)] if "{i}" in template.theirs else [template]
    if "{e}" not in template.theirs:
        return layers
    return [layer.of(e) for layer in layers for e in range(shapes.get(layer.ours[0], (0,))[0])]


def _and_more(names: list[str]) -> str:
    if len(names) == 1:
        return ""
    shown = ", ".join(names[1:4])
    return f" (and {len(names) - 1} more: {shown}{', ...' if len(names) > 4 else ''})"
