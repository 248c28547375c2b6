"""Correspondence of a published file's tensors and a model's parameters: one table, used to read and to write."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from archetype.errors import CheckpointError

ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")  # such as {q,k,v}


@dataclass(frozen=True)
class Rule:
    """One tensor of a file and the parameters that it holds, concatenated along their first axis.

    Attributes:
        hf: name of the tensor in the file; `{i}` stands for a layer's number, `{e}` for an expert's, `{name}` for the
            rest of the name of every parameter that no earlier rule covers.
        params: names of the parameters of the model; `{i}` stands for a layer's number.
        transposed: whether the file stores the matrix, or each of a stack, as (inputs, outputs) instead of (outputs,
            inputs).
        expert: number of the expert, if the file has a tensor for each and the model one parameter for all.
        heads: number of interleaved groups of rows: the first head's rows of each parameter, then the second's, ...
        shape: of the tensor in the file, if it differs from the parameter's.
        swapped: whether the halves of each row are in the other order in the file.
    """

    hf: str
    params: tuple[str, ...]
    transposed: bool = False
    expert: int | None = None
    heads: int = 1
    shape: tuple[int, ...] | None = None
    swapped: bool = False

    def for_layer(self, layer: int) -> "Rule":
        """Return the rule for one layer."""
        params = tuple(name.replace("{i}", str(layer)) for name in self.params)
        return replace(self, hf=self.hf.replace("{i}", str(layer)), params=params)

    def for_expert(self, expert: int) -> "Rule":
        """Return the rule for one expert."""
        return replace(self, hf=self.hf.replace("{e}", str(expert)), expert=expert)

    def shape_in(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of a parameter that the rule covers: one expert's, or all of it."""
        return shape if self.expert is None else shape[1:]


def rule(hf: str, *params: str, transposed: bool = False, heads: int = 1, shape: tuple[int, ...] | None = None) -> Rule:
    """Return a `Rule`."""
    return Rule(hf, params, transposed, heads=heads, shape=shape)


def weight_rules(table: str, transposed: bool = False, heads: int = 1) -> tuple[Rule, ...]:
    """Return the rules of a table; each line has the file's name of a part and the name here.

    A line stands for a weight and a bias, which are dropped if the model has none; after `=`, for a tensor without such
    a suffix. Alternatives in braces correspond one to one; braces on the right alone are parameters of one tensor:

        model.layers.{i}.self_attn.{q,k,v,o}_proj   blocks.{i}.mixer.{q,k,v,o}
        transformer.h.{i}.attn.c_attn               blocks.{i}.mixer.{q,k,v}
        backbone.layers.{i}.mixer.{A_log,D}       = blocks.{i}.mixer.{A_log,D}

    Args:
        transposed: whether the file stores these matrices as (inputs, outputs).
        heads: of all parameters in one tensor, as in `Rule`.
    """
    rules = []
    for hf, *equals, param in filter(None, map(str.split, table.splitlines())):
        for suffix in ("",) if equals else (".weight", ".bias"):
            turned = transposed and suffix == ".weight"
            rules += [
                Rule(name, params, turned, heads=heads) for name, params in _alternatives(hf + suffix, param + suffix)
            ]
    return tuple(rules)


def _alternatives(hf: str, param: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the names of a line for each of its alternatives."""
    left, right = ALTERNATIVES.search(hf), ALTERNATIVES.search(param)
    params = [param] if right is None else [param.replace(right[0], name, 1) for name in right[1].split(",")]
    if left is None:
        yield hf, tuple(params)
    else:
        for name, name_here in zip(left[1].split(","), params, strict=True):
            yield from _alternatives(hf.replace(left[0], name, 1), name_here)


def for_model(rules: Iterable[Rule], num_layers: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    """Return the rules of one model, for all its layers and experts and only for its parameters.

    Args:
        shapes: of each of its parameters.

    Raises:
        CheckpointError: a parameter has no rule or more than one.
    """
    all_rules: list[Rule] = []
    for template in rules:
        if "{name}" in template.hf:
            taken = {name for earlier in all_rules for name in earlier.params}
            all_rules += [further for further in _for_each_name(template, shapes) if taken.isdisjoint(further.params)]
        else:
            all_rules += _fill_in(template, num_layers, shapes)
    model_rules = [r for r in all_rules if any(name in shapes for name in r.params)]
    uses = Counter((name, r.expert) for r in model_rules for name in r.params)
    names = {name for name, _ in uses}
    orphans = sorted(shapes.keys() - names) + sorted(names - shapes.keys())
    if orphans:
        raise CheckpointError(orphans[0], "the family's format has no place for this parameter", "use another family")
    twice = sorted(name for (name, _), count in uses.items() if count > 1)
    if twice:
        raise CheckpointError(twice[0], "two weight rules claim this parameter", "this is a bug in the family")
    return model_rules


def _for_each_name(template: Rule, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Rule]:
    """Yield a rule for each parameter with the template's prefix."""
    (beginning,) = (param.removesuffix("{name}") for param in template.params)
    for param in shapes:
        if param.startswith(beginning):
            yield replace(template, hf=template.hf.replace("{name}", param.removeprefix(beginning)), params=(param,))


def check_all_used(rules: list[Rule], tensors: Iterable[str], ignored: Iterable[str]) -> None:
    """Check that every tensor of the file is used.

    Raises:
        CheckpointError: names the missing tensors, or those that no rule uses.
    """
    present, used = set(tensors), {r.hf for r in rules}
    patterns = [re.compile(pattern) for pattern in ignored]
    missing = sorted(used - present)
    if missing:
        raise CheckpointError(missing[0], f"this tensor is missing{_and_more(missing)}", "is the checkpoint complete?")
    extra = sorted(name for name in present - used if not any(p.fullmatch(name) for p in patterns))
    if extra:
        cause = f"the model has no place for this tensor{_and_more(extra)}"
        raise CheckpointError(extra[0], cause, "does config.json describe this checkpoint?")


def _fill_in(template: Rule, num_layers: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    """Return the rules of all layers and experts."""
    rules = [template.for_layer(i) for i in range(num_layers)] if "{i}" in template.hf else [template]
    if "{e}" not in template.hf:
        return rules
    return [layer.for_expert(e) for layer in rules for e in range(shapes.get(layer.params[0], (0,))[0])]


def _and_more(names: list[str]) -> str:
    if len(names) == 1:
        return ""
    some = ", ".join(names[1:4])
    return f" (and {len(names) - 1} more: {some}{', ...' if len(names) > 4 else ''})"
