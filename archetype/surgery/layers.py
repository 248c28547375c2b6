"""Mapping from each layer of the new model to a donor layer, and the parts of a layer."""

import random
from collections.abc import Callable, Sequence

from torch import nn

from archetype.errors import SpecError, enumeration
from archetype.models.block.spec import Block
from archetype.models.spec import ModelSpec
from archetype.models.stack.spec import StackView
from archetype.roles.norm import Norm
from archetype.spec.edit import assign

MEASURED = "influence"  # on a text
WAYS = (MEASURED, "first", "random")  # of choosing the layers that are kept


def origins(old: StackView, new: StackView, chosen: Sequence[int] | None = None) -> list[int]:
    """Return the donor's layer of each new layer: those chosen, the same ones, or the donor's spread evenly.

    Raises:
        SpecError: the choice names layers that do not exist, or another number of them.
    """
    count, total = len(old.layers), len(new.layers)
    if chosen is not None:
        if len(chosen) != total:
            cause = f"lists {len(chosen)} layers of the donor, but the new model has {total}"
            raise SpecError("--layers", cause, f"name {total} layers")
        if not all(0 <= layer < count for layer in chosen):
            raise SpecError("--layers", f"the donor has layers 0 to {count - 1}", "use these numbers")
        return list(chosen)
    return [layer * count // total for layer in range(total)]


def assigned(old: ModelSpec, changes: Sequence[str], chosen: Sequence[int] | None = None) -> ModelSpec:
    """Return a donor's specification with changes applied after layers are dropped or repeated.

    Otherwise a layer with a window could continue one without, where the layers of the donor differ.
    """
    new = assign(old, [*changes])
    if not old.stacks or not are_free(old, changes):
        return new
    layers = origins(old.stacks[0], new.stacks[0], chosen)
    if layers == list(range(len(old.stacks[0].layers))):
        return new
    return assign(old.replace(layers=tuple(old.stacks[0].layers[layer] for layer in layers)), [*changes])


def are_free(old: ModelSpec, changes: Sequence[str]) -> bool:
    """Return whether layers keep their fields where changes leave others out: no layer names another one."""
    blocks = enumerate(old.stacks[0].layers)
    is_linked = any(block.weights_of is not None or block.mixer.source(index) is not None for index, block in blocks)
    return bool(changes) and "layers" in type(old).model_fields and not is_linked


def kept_layers(
    way: str,
    old: StackView,
    new: StackView,
    influence: Callable[[], Sequence[float]],
    seed: int,
    is_free: bool = False,
) -> list[int]:
    """Return the layers that are kept where there are fewer.

    Layers with the most influence are those that change their input most (Men 2024, ShortGPT), among layers of the same
    form as the new ones unless `is_free`. First and random layers are the controls.

    Raises:
        SpecError: the way is unknown, or there are no fewer layers.
    """
    count, total = len(old.layers), len(new.layers)
    if way not in WAYS:
        raise SpecError("--layers", f"{way!r:.40} is not a method", f"use {enumeration(WAYS, 'or')}, or list 0-5,5")
    if total >= count:
        cause = f"{way} drops layers, but the new model has {total} layers and the donor {count}"
        raise SpecError("--layers", cause, "change num_layers, or name layers like 0-5,5")
    if way == "first":
        return list(range(total))
    if way == "random":
        return sorted(random.Random(seed).sample(range(count), total))
    values = influence()
    # the best choices of the first n new layers among the donor's layers so far: (sum of influences, layers)
    best: list[tuple[float, list[int]] | None] = [(0.0, []), *[None] * total]
    for layer, block in () if is_free else enumerate(old.layers):
        for index in reversed(range(total)):
            if (before := best[index]) is not None and _form(block) == _form(new.layers[index]):
                choice = before[0] + values[layer], [*before[1], layer]
                best[index + 1] = max(best[index + 1] or choice, choice, key=lambda chosen: chosen[0])
    if (last := best[total]) is not None:
        return last[1]
    return sorted(sorted(range(count), key=lambda layer: -values[layer])[:total])


def _form(block: Block) -> list[tuple[str, type]]:
    return [(name, type(part)) for name, part in block.contents.items()]


def owner(stack: StackView, layer: int) -> int:
    """Return the layer whose weights a layer uses: itself, or an earlier one."""
    shared = stack.layers[layer].weights_of
    return layer if shared is None else shared


def norms_of(module: nn.Module, block: Block) -> dict[str, Norm]:
    """Return the norms of a block by the name of their module."""
    names = [(content, norm) for content in block.contents for norm in ("norm", "post_norm")]
    return {
        f"{content}_{norm}": block.wiring.norm_of(content, norm)
        for content, norm in names
        if hasattr(module, f"{content}_{norm}")
    }


def sizes_of(spec: ModelSpec, stack: StackView) -> dict[str, int]:
    """Return the sizes of a whole model, by letter: D (of a norm: N), V and T."""
    vocabulary = getattr(spec, "vocab_size", stack.vocab_size)
    return {"D": stack.d_model, "N": stack.d_model, "V": vocabulary, "T": getattr(spec, "context_length", 0)}


def source_sizes(spec: ModelSpec) -> dict[str, int]:
    """Return the sizes of a model for the embedding of its source, which has no token table if both sides share one."""
    is_shared = getattr(getattr(spec, "embedding", None), "is_shared", True)
    return {**sizes_of(spec, spec.stacks[0]), "V": 0 if is_shared else spec.input_vocab_size}
