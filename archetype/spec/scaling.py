"""Scaling of specifications in proportion.

What each size is proportional to is declared by its type (`archetype.spec.sizes`), so that all kinds of parts and
models are scaled alike; other fields do not change.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, gcd
from typing import Any, NamedTuple, TypeVar

from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.edit import assign
from archetype.spec.sizes import followed

__all__ = ["scaled", "unusual_ratios"]

S = TypeVar("S", bound=Spec)
MEASURES = ("width", "depth", "vocab", "context")
USUAL_FEEDFORWARD = (1, 8)  # multiples of d_model
USUAL_HEAD = (16, 256)  # features


def scaled(spec: S, factors: Sequence[str]) -> S:
    """Return a validated copy of `spec` with another size.

    Width scales d_model and everything proportional to it: hidden features, ranks and heads. The number of heads
    changes at equal head size, with the same ratio of query and key/value heads; if it cannot be divided further, heads
    get narrower. Depth truncates or repeats the pattern of each stack.

    Args:
        spec: specification of a model.
        factors: `width`, `depth`, `vocab` or `context`, each with a ratio (width=1/8, width=0.5, width=2x) or a size
            (width=512 is a d_model).

    Raises:
        SpecError: a factor is invalid, the specification has no such size, or a size is not an integer.
    """
    for name, text in map(_parsed, factors):
        if name == "width":
            spec = _with_width(spec, text)
        elif name == "depth":
            counts = {path: len(layers) for path, layers in _stacks(spec.dump(each_layer=True))}
            _check_present(name, counts)
            spec = assign(spec, [f"{path}num_layers={_sized(name, text, size)}" for path, size in counts.items()])
        else:
            sizes = {
                f"{place}{field}": getattr(part, field)
                for place, part in _parts(spec)
                for field, follows in followed(type(part)).items()
                if follows.measure == name and getattr(part, field) is not None
            }
            _check_present(name, sizes)
            spec = assign(spec, [f"{path}={_sized(name, text, size)}" for path, size in sizes.items()])
    return spec


def unusual_ratios(before: Spec, after: Spec) -> list[str]:
    """Return sentences about ratios that a change has moved out of the usual range."""
    old, new = (dict(_ratios(spec)) for spec in (before, after))
    return [
        sentence
        for path, (ratio, (least, most), sentence) in new.items()
        if not least <= ratio <= most and (path not in old or old[path][0] != ratio)
    ]


def _parsed(text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or name not in MEASURES:
        raise SpecError("--scale", f"{text!r} is not one of {', '.join(MEASURES)} with a value", "write width=1/8")
    return name, value


def _sized(name: str, text: str, size: int) -> int:
    """Return the new size for a ratio or a size."""
    try:
        value = int(text) if text.isdecimal() else round(size * Fraction(text.removesuffix("x")))
    except (ValueError, ZeroDivisionError):
        raise SpecError(f"--scale {name}", f"{text!r} is not a size or a ratio", "write 1/8, 0.5, 2x or 512") from None
    if value < 1:
        raise SpecError(f"--scale {name}", f"{text} of {size} leaves nothing", "use a larger ratio")
    return value


def _check_present(name: str, sizes: Mapping[str, int]) -> None:
    if not sizes:
        raise SpecError(f"--scale {name}", "the specification has no such size", "leave it out")


def _stacks(data: Any, place: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield each list of layers in plain data, with the path before it."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "layers" and isinstance(value, list):
                yield place, value
            else:
                yield from _stacks(value, f"{place}{key}.")


def _parts(spec: Spec, place: str = "") -> Iterator[tuple[str, Spec]]:
    """Yield a specification and all parts in it, with the path of their fields."""
    yield place, spec
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, Spec):
            yield from _parts(value, f"{place}{name}.")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Spec):
                    yield from _parts(item, f"{place}{name}[{index}].")


def _with_width(spec: S, text: str) -> S:
    widths = [part.d_model for _, part in _parts(spec) if hasattr(part, "d_model")]
    if not widths:
        raise SpecError("--scale width", "the specification has no d_model", "leave it out")
    factor = Fraction(_sized("width", text, widths[0]), widths[0])
    data = spec.dump(full=True, each_layer=True)
    _scale_node(spec, data, _Above(factor, widths[0], Fraction(1)), "")
    try:
        copy: S = spec.reparse(data)
    except SpecError as error:
        if text.isdecimal() and int(text) < USUAL_HEAD[0]:
            remedy = f"write width={text}x for {text} times the width"
            raise SpecError("--scale width", f"{text} is the d_model itself", remedy) from None
        raise error.at("--scale width") from None
    return copy


class _Above(NamedTuple):
    """Factors that a part inherits from the parts that contain it."""

    factor: Fraction  # new width of the model / old width
    d_model: int  # old width
    share: Fraction  # new head size / old head size


def _scale_node(part: Spec, node: Any, above: _Above, place: str) -> None:
    """Scale the plain data of a part and of all parts in it, in place."""
    if not isinstance(node, dict):  # written as a word, without fields
        return
    above = above._replace(d_model=getattr(part, "d_model", above.d_model))
    has_heads = any(follows.measure == "heads" for follows in followed(type(part)).values())
    if has_heads:
        above = above._replace(share=_scale_heads(part, node, above, place))
    for name, follows in followed(type(part)).items():
        value = node[name]
        if follows.measure == "width" and isinstance(value, list | tuple):
            node[name] = [max(1, round(size * above.factor)) for size in value]
        elif follows.measure == "width" and isinstance(value, int):
            node[name] = max(1, round(value * above.factor))
        elif follows.measure == "head" and isinstance(value, float) and above.share != 1:
            node[name] = value * float(above.share) ** follows.power
        elif follows.measure == "head" and isinstance(value, int) and above.share != 1 and not has_heads:
            node[name] = max(2, 2 * round(value * above.share / 2))
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Spec):
            _scale_node(value, node[name], above, f"{place}.{name}".lstrip("."))
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Spec):
                    _scale_node(item, node[name][index], above, f"{place}.{name}[{index}]".lstrip("."))


def _scale_heads(part: Spec, node: dict[str, Any], above: _Above, place: str) -> Fraction:
    """Scale the number of heads; if it cannot be divided far enough, scale the head size too.

    Returns:
        New head size / old head size.
    """
    sizes = {name: follows.measure for name, follows in followed(type(part)).items() if isinstance(node[name], int)}
    counts = {name: node[name] for name, measure in sizes.items() if measure == "heads"}
    widths = {name: node[name] for name, measure in sizes.items() if measure == "head"}
    num_heads, common = next(iter(counts.values())), gcd(*counts.values())
    for groups in range(max(1, ceil(common * above.factor)), max(common, ceil(common * above.factor)) + 1):
        share = above.factor * common / groups
        scaled = [width * share for width in widths.values()] or [Fraction(above.d_model, num_heads) * share]
        if all(size.denominator == 1 and (size % 2 == 0 or share == 1) for size in scaled):
            node |= {name: count * groups // common for name, count in counts.items()}
            node |= {name: int(width * share) for name, width in widths.items()}
            return share
    cause = f"{num_heads} heads cannot be divided into {float(above.factor):g} of their width"
    raise SpecError(f"--scale width: {place}", cause, "use a ratio such as 1/2, 1/4 or 1/8")


def _ratios(spec: Spec) -> Iterator[tuple[str, tuple[float, tuple[int, int], str]]]:
    """Yield (path of a size, (ratio, usual range, sentence about it))."""
    data = spec.dump(full=True, each_layer=True)
    for prefix, layers in _stacks(data):
        d_model = _width_above(data, prefix)
        for index, layer in enumerate(layers if d_model else ()):
            place = re.sub(r"^\.", "", f"{prefix}layers[{index}]")
            d_ff: Any = (layer.get("feedforward") or {}).get("d_ff")
            if isinstance(d_ff, int):
                ratio = d_ff / d_model
                said = f"d_ff {d_ff} is {ratio:.3g} times d_model {d_model}, where most models have 1 to 8 times"
                yield f"{place}.d_ff", (ratio, USUAL_FEEDFORWARD, said)
            mixer = layer.get("mixer") or {}
            heads: Any = mixer.get("num_heads")
            if isinstance(heads, int) and "head_dim" in mixer:
                width = mixer["head_dim"] or d_model / heads
                said = f"each of {heads} heads has {width:.3g} features, where most models have 16 to 256"
                yield f"{place}.head_dim", (width, USUAL_HEAD, said)


def _width_above(data: Any, prefix: str) -> int:
    """Return the d_model of the stack at a path: its own, or the model's."""
    width = data.get("d_model") or 0
    for key in filter(None, prefix.split(".")):
        data = data.get(key)
        width = data.get("d_model") or width if isinstance(data, dict) else width
    return int(width)
