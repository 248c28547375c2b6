"""Rules that map the tensors in a published file to the parameters of a model, for reading and writing."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from archetype.errors import CheckpointError

ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")  # such as {q,k,v}


@dataclass(frozen=True)
class Rule:
    """Tensor in a file and the parameters that it stores, concatenated along the first axis.

    Attributes:
        hf: name in the file. `{i}` is the index of a layer, `{e}` the index of an expert, `{name}` the rest of the name
            of any parameter that no earlier rule covers.
        params: names of the model's parameters. `{i}` is the index of a layer.
        transposed: whether the file stores matrices as (inputs, outputs) instead of (outputs, inputs).
        expert: index of the expert, if the file has one tensor per expert and the model one parameter for all experts.
        heads: number of interleaved groups of rows: the first head's rows of each parameter, then the second's, ...
        shape: shape of the tensor in the file, if it differs from the parameter's shape.
        swapped: whether the file stores the two halves of each row in the opposite order.
        rows: first row and end of the rows that the tensor has, if the file stores a parameter in several tensors.
        stacked: whether the matrices of a parameter (E, rows, columns), after any transposition, are one matrix of the
            file, (E rows, columns).
        padding: number of rows of zeros behind the parameter in the file, which the model does not have.
        unused: whether these rows may have any values, since the published class never uses them; zeros are written.
    """

    hf: str
    params: tuple[str, ...]
    transposed: bool = False
    expert: int | None = None
    heads: int = 1
    shape: tuple[int, ...] | None = None
    swapped: bool = False
    rows: tuple[int, int] | None = None
    stacked: bool = False
    padding: int = 0
    unused: bool = False

    def for_layer(self, layer: int) -> "Rule":
        params = tuple(name.replace("{i}", str(layer)) for name in self.params)
        return replace(self, hf=self.hf.replace("{i}", str(layer)), params=params)

    def for_expert(self, expert: int) -> "Rule":
        return replace(self, hf=self.hf.replace("{e}", str(expert)), expert=expert)

    @property
    def is_reshaped(self) -> bool:
        """Whether the tensor has other axes than the parameter."""
        return self.shape is not None or self.stacked or bool(self.padding)

    @property
    def share(self) -> int | slice | None:
        """Index of the rule's share of a parameter: an expert or some of the rows; None for the complete parameter."""
        return self.expert if self.rows is None else slice(*self.rows)

    def shape_in(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the rule's share of a parameter."""
        if self.rows is not None:
            return (self.rows[1] - self.rows[0], *shape[1:])
        return shape if self.expert is None else shape[1:]


def rule(
    hf: str,
    *params: str,
    transposed: bool = False,
    heads: int = 1,
    shape: tuple[int, ...] | None = None,
    rows: tuple[int, int] | None = None,
    stacked: bool = False,
    padding: int = 0,
    unused: bool = False,
) -> Rule:
    return Rule(hf, params, transposed, None, heads, shape, rows=rows, stacked=stacked, padding=padding, unused=unused)


def weight_rules(table: str, transposed: bool = False, heads: int = 1) -> tuple[Rule, ...]:
    """Return the rules in a table, whose lines have a name in the file and a name in the model.

    A line stands for a weight and a bias, which are dropped if the model lacks them; with `=`, for the tensor itself.
    Alternatives in braces correspond one to one. If only the right side has braces, the tensor is fused:

        model.layers.{i}.self_attn.{q,k,v,o}_proj   blocks.{i}.mixer.{q,k,v,o}
        transformer.h.{i}.attn.c_attn               blocks.{i}.mixer.{q,k,v}
        backbone.layers.{i}.mixer.{A_log,D}       = blocks.{i}.mixer.{A_log,D}
    """
    rules = []
    for hf, *equals, param in filter(None, map(str.split, table.splitlines())):
        for suffix in ("",) if equals else (".weight", ".bias"):
            # a bias has no orientation
            is_transposed = transposed and suffix == ".weight"
            names = _alternatives(hf + suffix, param + suffix)
            rules += [Rule(name, params, is_transposed, heads=heads) for name, params in names]
    return tuple(rules)


def _alternatives(hf: str, param: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    left, right = ALTERNATIVES.search(hf), ALTERNATIVES.search(param)
    params = [param] if right is None else [param.replace(right[0], name, 1) for name in right[1].split(",")]
    if left is None:
        yield hf, tuple(params)
    else:
        for name, name_here in zip(left[1].split(","), params, strict=True):
            yield from _alternatives(hf.replace(left[0], name, 1), name_here)


def for_model(rules: Iterable[Rule], num_layers: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    """Return the rules for all layers, experts and parameters of a model, given the shapes of its parameters.

    Raises:
        CheckpointError: a parameter has no rule or more than one, or not all of its rows have one.
    """
    all_rules: list[Rule] = []
    for template in rules:
        if "{name}" in template.hf:
            taken = {name for earlier in all_rules for name in earlier.params}
            all_rules += [further for further in _for_each_name(template, shapes) if taken.isdisjoint(further.params)]
        else:
            all_rules += _fill_in(template, num_layers, shapes)
    model_rules = [r for r in all_rules if any(name in shapes for name in r.params)]
    uses = Counter((name, r.expert, r.rows) for r in model_rules for name in r.params)
    names = {name for name, _, _ in uses}
    orphans = sorted(shapes.keys() - names) + sorted(names - shapes.keys())
    if orphans:
        raise CheckpointError(orphans[0], "the family's format does not have this parameter", "use another family")
    twice = sorted(name for (name, _, _), count in uses.items() if count > 1)
    if twice:
        raise CheckpointError(twice[0], "two weight rules claim this parameter", "this is a bug in the family")
    _check_rows(model_rules, shapes)
    return model_rules


def _check_rows(rules: Iterable[Rule], shapes: Mapping[str, tuple[int, ...]]) -> None:
    # tensors that share a parameter must have each of its rows once
    spans: dict[str, list[tuple[int, int]]] = {}
    for rule in rules:
        if rule.rows is not None:
            for name in rule.params:
                spans.setdefault(name, []).append(rule.rows)
    for name, parts in spans.items():
        ends, num_rows = [0, *(end for _, end in sorted(parts))], shapes[name][0]
        if [start for start, _ in sorted(parts)] != ends[:-1] or ends[-1] != num_rows:
            there = sum(end - start for start, end in parts)
            raise CheckpointError(name, f"has {num_rows} rows, but {there} in the file", "is the checkpoint complete?")


def _for_each_name(template: Rule, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Rule]:
    (beginning,) = (param.removesuffix("{name}") for param in template.params)
    for param in shapes:
        if param.startswith(beginning):
            yield replace(template, hf=template.hf.replace("{name}", param.removeprefix(beginning)), params=(param,))


def check_all_used(rules: list[Rule], tensors: Iterable[str], ignored: Iterable[str]) -> None:
    """Refuse a file that lacks tensors named by the rules, or has tensors that no rule uses."""
    present, used = set(tensors), {r.hf for r in rules}
    patterns = [re.compile(pattern) for pattern in ignored]
    missing = sorted(used - present)
    if missing:
        raise CheckpointError(missing[0], f"this tensor is missing{_and_more(missing)}", "is the checkpoint complete?")
    extra = sorted(name for name in present - used if not any(p.fullmatch(name) for p in patterns))
    if extra:
        cause = f"the model does not have this tensor{_and_more(extra)}"
        raise CheckpointError(extra[0], cause, "does config.json describe this checkpoint?")


def _fill_in(template: Rule, num_layers: int, shapes: Mapping[str, tuple[int, ...]]) -> list[Rule]:
    rules = [template.for_layer(i) for i in range(num_layers)] if "{i}" in template.hf else [template]
    if "{e}" not in template.hf:
        return rules
    return [layer.for_expert(e) for layer in rules for e in range(shapes.get(layer.params[0], (0,))[0])]


def _and_more(names: list[str]) -> str:
    if len(names) == 1:
        return ""
    some = ", ".join(names[1:4])
    return f" (and {len(names) - 1} more: {some}{', ...' if len(names) > 4 else ''})"
