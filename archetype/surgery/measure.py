"""Importance of a donor's layers and entries, for dropping and cutting."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection.inputs import Inputs
from archetype.inspection.trace import Trace, Tracer
from archetype.models.build import Model
from archetype.nn.random import generator_for
from archetype.nn.transplant import transplant_of
from archetype.roles.norm import Norm
from archetype.surgery.layers import norms_of, sizes_of

WAYS = ("activation", "magnitude", "first", "random")  # of choosing the entries that are kept
FIXED = frozenset("PTVC")  # letters of entries that have an order: features of heads, positions, tokens and choices
Values = dict[str, dict[str, Tensor]]  # by module and letter


def influences(donor: Model, rows: Sequence[Tensor]) -> list[float]:
    """Return 1 - cosine of the input and output of each layer, on average over positions (Men 2024, equation 1).

    Raises:
        SpecError: the residual stream of the model grows.
    """
    stack = donor.spec.stacks[0]
    sums, count = [0.0] * len(stack.layers), 0
    for trace in _traces(donor, rows):
        for layer in range(len(stack.layers)):
            x, y = (trace[f"{stack.prefix}blocks.{layer}.{side}"].flatten(2).double() for side in ("in", "out"))
            if x.shape != y.shape:
                raise SpecError("--layers", "the residual stream grows with each layer", "list layers like 0-5")
            sums[layer] += float((1 - torch.cosine_similarity(x, y, dim=-1)).sum())
        count += trace[f"{stack.prefix}blocks.0.in"].shape[1]
    return [total / count for total in sums]


def ranks_of(
    donor: Model, rows: Sequence[Tensor], way: str, seed: int = 0
) -> Callable[[str, str], Tensor | None] | None:
    """Return the importance of entries by module and letter, computed when something is cut.

    By activation these are the outputs of heads, the parts of hidden features in the output, the features of norms
    (Muralidharan 2024, Minitron, section 2.2) and the weights of experts; what has no activation is ranked by weights.
    """
    if way == "first":
        return None

    @cache
    def values() -> Values:
        ranks = _magnitudes(donor)
        for path, of_part in ranks.items():
            for letter, x in of_part.items() if way == "random" else ():
                generator = generator_for(seed, f"{path} {letter}", torch.device("cpu"))
                of_part[letter] = torch.rand(x.shape, generator=generator)
        for path, of_part in _activations(donor, rows).items() if way == "activation" else ():
            ranks[path] |= of_part
        return ranks

    return lambda module, letter: values().get(module, {}).get(letter)


def moments_of(donor: Model, rows: Sequence[Tensor]) -> Callable[[str], Tensor | None]:
    """Return the mean of x x^T over the inputs of a module, with a last feature of 1, computed when it is asked for.

    One module at a time, since the matrices of all layers may be as large as the model.
    """

    @torch.inference_mode()
    def moment(path: str) -> Tensor | None:
        sums: list[Tensor] = []

        def add(module: torch.nn.Module, arguments: tuple[Tensor, ...]) -> None:
            x = arguments[0].flatten(0, -2).double()
            x = torch.nn.functional.pad(x, (0, 1), value=1.0)
            sums.append(x.T @ x)

        hook = donor.get_submodule(path).register_forward_pre_hook(add)
        try:
            for row in rows:
                donor(row.to(donor.device))
        finally:
            hook.remove()
        count = sum(row.numel() for row in rows)
        return torch.stack(sums).sum(0).clone() / count if sums else None

    return moment


def _traces(donor: Model, rows: Sequence[Tensor]) -> Iterator[Trace]:
    for row in rows:
        tokens = row.to(donor.device)
        yield Tracer(donor, Inputs({"tokens": tokens}, (), ids=tokens)).run()


def _parts(donor: Model) -> Iterator[tuple[str, Any, dict[str, int]]]:
    # path, specification and sizes of every part that may be cut
    spec = donor.spec
    for stack in spec.stacks:
        for layer, block in enumerate(stack.layers):
            for name, content in block.contents.items() if block.weights_of is None else ():
                for path, part in content.named_parts():
                    at = f"{stack.prefix}blocks.{layer}.{name}"
                    yield f"{at}.{path}" if path else at, part, sizes_of(spec, stack)


def _magnitudes(donor: Model) -> Values:
    values: Values = defaultdict(dict)
    for path, part, of_model in _parts(donor):
        kind, state = transplant_of(part), donor.get_submodule(path).state_dict()
        sizes = kind.sizes(part, of_model)
        for name, layout in kind.all_layouts(part).items():
            letters = layout.replace(" ", "")
            if name not in state or not letters.isalpha():  # matrices side by side
                continue
            shape = [sizes[letter] for letter in letters]
            if state[name].numel() != math.prod(shape):
                continue
            squares = state[name].detach().float().reshape(shape).square()
            for dim, letter in enumerate(letters):
                if letter not in FIXED:
                    others = [axis for axis in range(len(letters)) if axis != dim]
                    _add(values["" if letter == "D" else path], {letter: squares.sum(others) if others else squares})
    return values


def _activations(donor: Model, rows: Sequence[Tensor]) -> Values:
    values: Values = defaultdict(dict)
    parts = [(path, path, part) for path, part, _ in _parts(donor)]
    for stack in donor.spec.stacks:
        norms: dict[str, Norm] = {}
        for layer, block in enumerate(stack.layers):
            at = f"{stack.prefix}blocks.{layer}"
            before = norms_of(donor.get_submodule(at), block) if block.weights_of is None else {}
            norms |= {f"{at}.{name}": norm for name, norm in before.items() if not name.endswith("_post_norm")}
        norms[f"{stack.prefix}final_norm"] = stack.final_norm
        parts += [("", path, norm) for path, norm in norms.items()]  # all norms rank the features of the stream
    for trace in _traces(donor, rows):
        for place, path, part in parts:
            _add(values[place], transplant_of(part).importance(part, trace.part(path)))
    return values


def _add(sums: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for letter, value in values.items():
        sums[letter] = sums[letter] + value if letter in sums else value
