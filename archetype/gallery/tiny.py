"""Shrink a specification to one with the same parts that trains on bytes in minutes."""

from collections.abc import Mapping
from typing import Any, TypeVar

from archetype.spec.base import Spec
from archetype.spec.repeats import OF_PASSES
from archetype.spec.sizes import followed

S = TypeVar("S", bound=Spec)
WIDTH, HEADS, HEAD_WIDTH, VOCABULARY, CONTEXT = 64, 4, 16, 256, 128
NARROWEST = 8  # ranks and hidden layers
# largest values of counts that do not follow a size of the model
LARGEST: Mapping[str, int] = {
    "num_experts": 8, "experts_per_token": 2, "num_groups": 2, "groups": 2, "groups_per_token": 1, "top_k": 32,
    "state_size": 16, "chunk_size": 16, "size": 32, "rows": 256,
}  # fmt: skip
MOST_LAYERS = 16


def tiny(spec: S) -> S:
    """Return a specification with each distinct layer of `spec` and narrow parts. Ratios of heads are kept.

    The stack ends once every distinct layer has occurred. A looped stack runs for two passes. Windows shrink, too.

    Raises:
        SpecError: the sizes of a part do not fit together.
    """
    data = spec.dump(full=True, each_layer=True)
    _shrink(spec, data, getattr(spec, "d_model", WIDTH), 1.0)
    for stack in (data, data.get("encoder"), data.get("decoder")):
        if isinstance(stack, dict) and isinstance(stack.get("layers"), list):
            stack["layers"] = _first_of_each(stack["layers"])
    if isinstance(data.get("name"), str) and data["name"]:
        data["name"] += "-tiny"
    copy: S = spec.reparse(data)
    return copy


def _first_of_each(layers: list[Any]) -> list[Any]:
    size = next((index for index, layer in enumerate(layers) if layer["weights_of"] is not None), len(layers))
    if size < len(layers):
        own, of_pass = _first_of_each(layers[:size]), {name: layers[size][name] for name in OF_PASSES}
        return own + [layer | {"weights_of": index} | (of_pass if not index else {}) for index, layer in enumerate(own)]
    written = [repr(layer) for layer in layers]
    last = max(written.index(layer) for layer in set(written))
    return layers[: min(max(last + 1, 2), MOST_LAYERS)]


def _shrink(part: Spec, data: Any, d_model: int, share: float) -> None:
    # in place; `data` is the part's plain data, or its kind as a string, and `share` the new / old head size of the
    # surrounding part
    if not isinstance(data, dict):
        return
    declared = followed(type(part))
    sizes = {measure: [1] for measure in ("heads", "head")}
    for name, follows in declared.items():
        if isinstance(size := data[name], int) and follows.measure in sizes:
            sizes[follows.measure].append(size)
    heads, head = (max(sizes[measure]) for measure in ("heads", "head"))
    if heads > 1:
        share = HEAD_WIDTH / head if head > 1 else WIDTH / HEADS / (d_model / heads)
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        follows_ = declared.get(name)
        match follows_.measure if follows_ is not None else "":
            case "width" if name == "d_model":
                data[name] = WIDTH
            case "width":
                data[name] = max(NARROWEST, round(value * WIDTH / d_model))
            case "heads":
                data[name] = max(1, min(round(value), int(value * HEADS / heads)))
            case "head" if isinstance(value, float) and follows_ is not None:
                data[name] = value * share**follows_.power
            case "head":
                data[name] = max(2, 2 * round(value * share / 2))
            case "vocab":
                data[name] = min(value, VOCABULARY)
            case "context":
                data[name] = min(value, CONTEXT)
            case "" if name in LARGEST:
                data[name] = min(value, LARGEST[name])
    for name in type(part).model_fields:
        value, inner = getattr(part, name), data.get(name)
        if isinstance(value, Spec):
            _shrink(value, inner, d_model, share)
        elif isinstance(value, tuple) and isinstance(inner, list):
            for item, plain in zip(value, inner, strict=True):
                if isinstance(item, Spec):
                    _shrink(item, plain, d_model, share)
