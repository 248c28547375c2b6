"""A smaller or larger copy of a specification, in the same proportions.

What follows from the width is told by the names of fields, so that every kind of part and model is scaled alike.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, gcd
from typing import Any, TypeVar

from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.edit import assign, leaves

__all__ = ["scaled", "unusual_ratios"]

S = TypeVar("S", bound=Spec)
MEASURES = ("width", "depth", "vocab", "context")
FIELDS = {"vocab": ("vocab_size", "source_vocab_size"), "context": ("context_length",)}
# Fields that are a share of the model's width, or a multiple of it.
WIDTHS = ("d_model", "d_ff", "multiple_of", "width", "latent_width", "kv_lora_rank", "rank", "features", "base_width")
HEADS = ("num_heads", "num_kv_heads", "num_key_heads")
OF_HEAD = ("head_dim", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim")
USUAL_FEEDFORWARD = (1, 8)  # times d_model
USUAL_HEAD = (16, 256)  # features


def scaled(spec: S, factors: Sequence[str]) -> S:
    """A copy of `spec` of another size, checked anew.

    Width changes d_model and all that is a share of it: hidden features, ranks and heads. There are fewer or more heads
    of the same width, as many key/value heads for each as before; where they cannot be divided further, they become
    narrower. Depth cuts or repeats the pattern of each stack.

    Args:
        spec: of a model.
        factors: `width`, `depth`, `vocab` or `context`, each with a ratio (width=1/8, width=0.5, width=2x) or a size
            (width=512, which is d_model).

    Raises:
        SpecError: a factor is not understood, the specification has no such size, or a size does not come out whole.
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
                path: value
                for path, value in leaves(spec.dump())
                if path.split(".")[-1] in FIELDS[name] and isinstance(value, int)
            }
            _check_present(name, sizes)
            spec = assign(spec, [f"{path}={_sized(name, text, size)}" for path, size in sizes.items()])
    return spec


def unusual_ratios(before: Spec, after: Spec) -> list[str]:
    """Sentences about ratios that a change has taken out of the range that most models keep."""
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
    """The new size that a ratio or a size stands for."""
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
    """Each list of layers of plain data, and the path before it."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "layers" and isinstance(value, list):
                yield place, value
            else:
                yield from _stacks(value, f"{place}{key}.")


def _with_width(spec: S, text: str) -> S:
    data = spec.dump(full=True, each_layer=True)
    widths = [value for path, value in leaves(data) if path.split(".")[-1] == "d_model"]
    if not widths:
        raise SpecError("--scale width", "the specification has no d_model", "leave it out")
    factor = Fraction(_sized("width", text, widths[0]), widths[0])
    _scale_node(data, factor, None, "")
    try:
        copy: S = spec.reparse(data)
    except SpecError as error:
        if text.isdecimal() and int(text) < USUAL_HEAD[0]:
            remedy = f"write width={text}x for {text} times the width"
            raise SpecError("--scale width", f"{text} is the d_model itself", remedy) from None
        raise error.at("--scale width") from None
    return copy


def _scale_node(node: Any, factor: Fraction, d_model: int | None, place: str) -> None:
    """Scale a node of plain data and all below it, in place; `d_model` is the width that it had."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            _scale_node(item, factor, d_model, f"{place}[{index}]")
    if not isinstance(node, dict):
        return
    d_model = node.get("d_model", d_model)
    if isinstance(node.get("num_heads"), int):
        _scale_heads(node, factor, d_model, place)
    for key, value in node.items():
        if key in WIDTHS and _is_size(value):
            node[key] = max(1, round(value * factor))
        elif key == "hidden" and isinstance(value, list | tuple):
            node[key] = [max(1, round(size * factor)) for size in value]
        else:
            _scale_node(value, factor, d_model, f"{place}.{key}".lstrip("."))


def _scale_heads(node: dict[str, Any], factor: Fraction, d_model: int | None, place: str) -> None:
    """Fewer or more heads of the same width; narrower ones where the heads cannot be divided so far."""
    counts = {key: node[key] for key in HEADS if _is_size(node.get(key))}
    widths = {key: node[key] for key in OF_HEAD if _is_size(node.get(key))}
    whole = d_model is not None and Fraction(d_model, node["num_heads"])  # of a head that follows from d_model
    common = gcd(*counts.values())
    for groups in range(max(1, ceil(common * factor)), max(common, ceil(common * factor)) + 1):
        share = factor * common / groups  # of each head's width
        sizes = [width * share for width in widths.values()] or ([whole * share] if whole else [])
        if all(size.denominator == 1 and (size % 2 == 0 or share == 1) for size in sizes):
            node |= {key: count * groups // common for key, count in counts.items()}
            node |= {key: int(width * share) for key, width in widths.items()}
            if share != 1:
                _scale_within_head(node, share)
            return
    cause = f"{node['num_heads']} heads cannot be divided into {float(factor):g} of their width"
    raise SpecError(f"--scale width: {place}", cause, "use a ratio such as 1/2, 1/4 or 1/8")


def _scale_within_head(node: dict[str, Any], share: Fraction) -> None:
    """What depends on the width of a head: the factor of scores, and how many features turn."""
    if isinstance(node.get("scale"), float):
        node["scale"] *= float(share) ** -0.5
    position = node.get("position")
    if isinstance(position, dict) and _is_size(position.get("dim")):
        position["dim"] = max(2, 2 * round(position["dim"] * share / 2))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ratios(spec: Spec) -> Iterator[tuple[str, tuple[float, tuple[int, int], str]]]:
    """Ratio, its usual range, and a sentence about it, by the path of a size."""
    data = spec.dump(full=True, each_layer=True)
    for prefix, layers in _stacks(data):
        d_model = _width_above(data, prefix)
        for index, layer in enumerate(layers if d_model else ()):
            place = re.sub(r"^\.", "", f"{prefix}layers[{index}]")
            d_ff: Any = (layer.get("feedforward") or {}).get("d_ff")
            if _is_size(d_ff):
                ratio = d_ff / d_model
                said = f"d_ff {d_ff} is {ratio:.3g} times d_model {d_model}, where most models have 1 to 8 times"
                yield f"{place}.d_ff", (ratio, USUAL_FEEDFORWARD, said)
            mixer = layer.get("mixer") or {}
            heads: Any = mixer.get("num_heads")
            if _is_size(heads) and "head_dim" in mixer:
                width = mixer["head_dim"] or d_model / heads
                said = f"each of {heads} heads has {width:.3g} features, where most models have 16 to 256"
                yield f"{place}.head_dim", (width, USUAL_HEAD, said)


def _width_above(data: Any, prefix: str) -> int:
    """The d_model of the stack at a path, its own or the model's."""
    width = data.get("d_model") or 0
    for key in filter(None, prefix.split(".")):
        data = data.get(key)
        width = data.get("d_model") or width if isinstance(data, dict) else width
    return int(width)
