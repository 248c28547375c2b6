"""The tensors of a file, sorted: what lies around the layers, and each layer's mixer, network and norms."""

import re
from dataclasses import dataclass, field

from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shapes
from archetype.convert.infer.names import EXPERTS, FRAME, LEFT_OUT, MASK, MIXER, NETWORKS, SPARSE, read_name
from archetype.errors import CheckpointError

Named = dict[str, str]  # our name with its kind (weight, bias), and the file's


@dataclass
class Layer:
    """One layer's tensors by our names below `mixer` and `feedforward`; norms by the file's names below the layer.

    `experts` holds what belongs to a single expert: ours, its number, and the file's name.
    """

    number: int
    prefix: str
    sparse: bool
    mixer: Named = field(default_factory=dict)
    network: Named = field(default_factory=dict)
    norms: Named = field(default_factory=dict)
    experts: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass
class GroupedTensors:
    """A file's tensors.

    Attributes:
        frame: around the layers, by our names.
        left_out: those that a decoder of text has no use for.
        transposed: matrices are kept as (inputs, outputs).
    """

    frame: Named
    layers: list[Layer]
    left_out: list[str]
    transposed: bool


def sort(clues: CheckpointInfo) -> GroupedTensors:
    """All tensors by what they are.

    Raises:
        CheckpointError: names one that is not understood, and the part that it belongs to where its name shows it.
    """
    left_out = [name for name in clues.shapes if _has_no_use(clues, name)]
    kept = [name for name in clues.shapes if name not in set(left_out)]
    prefix, numbers = _repeated(clues, kept)
    below = re.compile(rf"{re.escape(prefix)}\.(\d+)\.(.+)")
    layers = {number: Layer(number, f"{prefix}.{number}", False) for number in numbers}
    outside = []
    for name in kept:
        if (found := below.fullmatch(name)) is None:
            outside.append(name)
        elif SPARSE.fullmatch(found[2]):
            layers[int(found[1])].sparse = True
    for name in kept:
        if found := below.fullmatch(name):
            _into_layer(clues, layers[int(found[1])], found[2], name)
    ordered = [layers[number] for number in numbers]
    return GroupedTensors(_frame(clues, outside), ordered, left_out, _transposed(clues.shapes, ordered[0]))


def _has_no_use(clues: CheckpointInfo, name: str) -> bool:
    if MASK.fullmatch(name):
        return len(clues.shapes[name]) in (0, 4)
    computed = clues.habit.computed
    return LEFT_OUT.fullmatch(name) is not None or (computed is not None and re.fullmatch(computed, name) is not None)


def _repeated(clues: CheckpointInfo, names: list[str]) -> tuple[str, list[int]]:
    """The prefix of the numbered layers, the largest group of tensors with one, and their numbers."""
    groups: dict[str, list[int]] = {}
    for name in names:
        if found := re.fullmatch(r"(.*?)\.(\d+)\..+", name):
            groups.setdefault(found[1], []).append(int(found[2]))
    if not groups:
        raise CheckpointError(clues.config.place, "no tensor is of a numbered layer", "is this a decoder?")
    prefix = max(groups, key=lambda group: len(groups[group]))
    numbers = sorted(set(groups[prefix]))
    if numbers != list(range(len(numbers))):
        absent = min(set(range(len(numbers))) - set(numbers))
        raise CheckpointError(f"{prefix}.{absent}", "no tensor is of this layer", "is the checkpoint complete?")
    return prefix, numbers


def _frame(clues: CheckpointInfo, names: list[str]) -> Named:
    found: Named = {}
    for name in names:
        path, _, kind = _renamed(clues, name).rpartition(".")
        ours = next((read for tail in _tails(path) if (read := read_name(FRAME, tail))), None)
        if kind not in ("weight", "bias") or ours is None:
            raise clues.strange(name)
        kept = found.setdefault(f"{ours[0]}.{kind}", name)
        if kept != name:
            raise CheckpointError(name, f"seems to be the same as {kept}", f"the {clues.type} family is not known")
    if "embedding.token.weight" not in found:
        raise CheckpointError(clues.config.place, "no tensor is a table of tokens", "is this a decoder?")
    return found


def _tails(path: str) -> list[str]:
    """The path, and what is left of it without its first names, longest first."""
    parts = path.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _into_layer(clues: CheckpointInfo, layer: Layer, inner: str, name: str) -> None:
    """Put one tensor where it belongs."""
    path, _, kind = _renamed(clues, inner).rpartition(".")
    if layer.sparse and (bare := read_name(EXPERTS, _renamed(clues, inner))) and bare[0] == "correction":
        _once(clues, layer.network, "correction", name)
        return
    if kind not in ("weight", "bias"):
        raise clues.strange(name)
    if layer.sparse and (found := read_name(EXPERTS, path)):
        ours, expert = found
        if expert is not None:
            layer.experts.append((f"{ours}.{kind}", expert, name))
        else:
            _once(clues, layer.network, f"{ours}.{kind}", name)
    elif found := read_name(MIXER, path):
        _once(clues, layer.mixer, f"{found[0]}.{kind}", name)
    elif found := read_name(NETWORKS, path):
        _once(clues, layer.network, f"{found[0]}.{kind}", name)
    elif len(clues.shapes[name]) == 1:
        layer.norms[f"{path}.{kind}"] = name
    else:
        raise clues.strange(name)


def _once(clues: CheckpointInfo, named: Named, ours: str, name: str) -> None:
    if ours in named:
        raise clues.strange(name)
    named[ours] = name


def _renamed(clues: CheckpointInfo, name: str) -> str:
    for pattern, replaced in clues.habit.renamed:
        name = re.sub(rf"^{pattern}$", replaced, name)
    return name


def _transposed(shapes: Shapes, layer: Layer) -> bool:
    """Whether matrices are kept as (inputs, outputs), which shows where a bias is beside one that is not square."""
    for named in (layer.network, layer.mixer):
        for ours, name in named.items():
            bias = named.get(ours.removesuffix("weight") + "bias") if ours.endswith("weight") else None
            shape = shapes[name]
            if bias is not None and len(shape) == 2 and shape[0] != shape[1]:
                return shapes[bias] == (shape[1],)
    return False
