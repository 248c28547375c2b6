"""Scale the sizes of specifications in proportion.

The type of a field declares what it is proportional to (`archetype.spec.sizes`); other fields do not change.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, gcd
from typing import Any, NamedTuple, TypeVar

from archetype.errors import SpecError
from archetype.spec.base import Spec
from archetype.spec.edit import assign
from archetype.spec.sizes import Follows, followed

__all__ = ["scaled", "unusual_ratios"]

S = TypeVar("S", bound=Spec)
MEASURES = ("width", "depth", "vocab", "context")
USUAL_FEEDFORWARD = (1, 8)  # multiples of d_model
USUAL_HEAD = (16, 256)  # features


def scaled(spec: S, factors: Sequence[str]) -> S:
    """Return a validated copy of `spec` with another size.

    Width scales d_model and everything proportional to it: hidden features, ranks and heads. The number of heads
    changes, with the same size of heads and ratio of query and key/value heads; if it cannot be divided further, heads
    become narrower. Depth truncates or repeats the pattern of each stack.

    Args:
        factors: `width`, `depth`, `vocab` or `context`, each with a ratio (width=1/8, width=0.5, width=2x) or a size
            (width=512 is a d_model).

    Raises:
        SpecError: a factor is invalid, the specification has no such size, or a size is not an integer.
    """
    for name, text in map(_parsed, factors):
        if name == "width":
            spec = _with_width(spec, text)
        elif name == "depth":
            stacks = (node for node in _walk(spec) if isinstance(getattr(node.part, "layers", None), tuple))
            counts = {node.path: len(node.part.layers) for node in stacks}  # type: ignore[attr-defined]
            _check_present(name, counts)
            spec = assign(spec, [f"{path}num_layers={_sized(name, text, size)}" for path, size in counts.items()])
        else:
            sizes = {
                f"{node.path}{field}": getattr(node.part, field)
                for node in _walk(spec)
                for field, follows in followed(type(node.part)).items()
                if follows.measure == name and getattr(node.part, field) is not None
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
    # the new size; `text` is a ratio or the size itself
    try:
        value = int(text) if text.isdecimal() else round(size * Fraction(text.removesuffix("x")))
    except (ValueError, ZeroDivisionError):
        raise SpecError(f"--scale {name}", f"{text!r} is not a size or a ratio", "write 1/8, 0.5, 2x or 512") from None
    if value < 1:
        raise SpecError(f"--scale {name}", f"{text} of {size} leaves nothing", "use a larger ratio")
    return value


def _check_present(name: str, sizes: Mapping[str, int]) -> None:
    if not sizes:
        raise SpecError(f"--scale {name}", "the specification has no such size", "remove it")


class _Node(NamedTuple):
    part: Spec
    data: Any  # plain data; a string if the part is written as a word, without fields
    path: str  # prefix of the paths of its fields, such as "layers[0].mixer."
    above: "_Node | None"  # the node that contains it; None for the specification

    @property
    def d_model(self) -> int:
        # width of the innermost part around this one that declares a width; 0 if none does
        inherited = self.above.d_model if self.above else 0
        return getattr(self.part, "d_model", None) or inherited


def _walk(part: Spec, data: Any = None, path: str = "", above: _Node | None = None) -> Iterator[_Node]:
    # a specification and all parts in it, each before the parts that it contains
    node = _Node(part, data, path, above)
    yield node
    for name in type(part).model_fields:
        value, inner = getattr(part, name), data.get(name) if isinstance(data, dict) else None
        if isinstance(value, Spec):
            yield from _walk(value, inner, f"{path}{name}.", node)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Spec):
                    yield from _walk(item, inner[index] if inner else None, f"{path}{name}[{index}].", node)


def _with_width(spec: S, text: str) -> S:
    widths = [node.part.d_model for node in _walk(spec) if hasattr(node.part, "d_model")]
    if not widths:
        raise SpecError("--scale width", "the specification has no d_model", "remove it")
    factor = Fraction(_sized("width", text, widths[0]), widths[0])
    data = spec.dump(full=True, each_layer=True)
    shares: dict[str, Fraction] = {}  # by path: new head size / old head size
    for node in _walk(spec, data):
        if isinstance(node.data, dict):
            share = shares[node.above.path] if node.above else Fraction(1)
            shares[node.path] = _scale_sizes(node, factor, share)
    try:
        copy: S = spec.reparse(data)
    except SpecError as error:
        if text.isdecimal() and int(text) < USUAL_HEAD[0]:
            remedy = f"write width={text}x for {text} times the width"
            raise SpecError("--scale width", f"{text} is the d_model itself", remedy) from None
        raise error.at("--scale width") from None
    return copy


def _scale_sizes(node: _Node, factor: Fraction, share: Fraction) -> Fraction:
    # Scales the plain data of a part in place. `factor` is new / old width of the model, `share` new / old head size of
    # the part that contains it. Returns new / old head size of this part.
    declared = followed(type(node.part))
    has_heads = any(follows.measure == "heads" for follows in declared.values())
    if has_heads:
        share = _scale_heads(node, factor)
    for name, follows in declared.items():
        value = node.data[name]
        if follows.measure == "width" and isinstance(value, list | tuple):
            node.data[name] = [max(1, round(size * factor)) for size in value]
        elif follows.measure == "width" and isinstance(value, int):
            node.data[name] = max(1, round(value * factor))
        elif follows.measure == "head" and isinstance(value, float) and share != 1:
            node.data[name] = value * float(share) ** follows.power
        elif follows.measure == "head" and isinstance(value, int) and share != 1 and not has_heads:
            node.data[name] = max(2, 2 * round(value * share / 2))
    return share


def _scale_heads(node: _Node, factor: Fraction) -> Fraction:
    # Scales the number of heads; also the head size, if the number cannot be divided further. Returns new / old head
    # size.
    data = node.data
    sizes = {n: follows.measure for n, follows in followed(type(node.part)).items() if isinstance(data[n], int)}
    counts = {name: data[name] for name, measure in sizes.items() if measure == "heads"}
    widths = {name: data[name] for name, measure in sizes.items() if measure == "head"}
    num_heads, common = next(iter(counts.values())), gcd(*counts.values())
    for groups in range(max(1, ceil(common * factor)), max(common, ceil(common * factor)) + 1):
        share = factor * common / groups
        scaled = [width * share for width in widths.values()] or [Fraction(node.d_model, num_heads) * share]
        # rotary positions need heads of even size
        if all(size.denominator == 1 and (size % 2 == 0 or share == 1) for size in scaled):
            data |= {name: count * groups // common for name, count in counts.items()}
            data |= {name: int(width * share) for name, width in widths.items()}
            return share
    cause = f"{num_heads} heads cannot be divided into {float(factor):g} of their width"
    path = node.path.removesuffix(".")
    raise SpecError(f"--scale width: {path}", cause, "use a ratio such as 1/2, 1/4 or 1/8")


def _ratios(spec: Spec) -> Iterator[tuple[str, tuple[float, tuple[int, int], str]]]:
    # (path of a size, (ratio, usual range, sentence about it))
    for node in _walk(spec):
        declared, d_model = followed(type(node.part)), node.d_model
        sizes = {name: getattr(node.part, name) for name in declared}
        for name, follows in declared.items() if d_model else ():
            if follows.is_inner and isinstance(size := sizes[name], int):
                ratio = size / d_model
                sentence = f"{name} {size} is {ratio:.3g} times d_model {d_model}, where most models have 1 to 8 times"
                yield f"{node.path}{name}", (ratio, USUAL_FEEDFORWARD, sentence)
        heads = next((sizes[name] for name, follows in declared.items() if follows.measure == "heads"), None)
        if isinstance(heads, int) and d_model:
            widths = [sizes[name] for name, follows in declared.items() if follows == Follows("head")]
            width = next(iter(widths), None) or d_model / heads
            sentence = f"each of {heads} heads has {width:.3g} features, where most models have 16 to 256"
            yield f"{node.path}head", (width, USUAL_HEAD, sentence)
