"""Grouping of a file's tensors by role."""

import re
from dataclasses import dataclass, field

from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shapes
from archetype.convert.infer.loop import Cycles, Loop, read_loop
from archetype.convert.infer.names import (
    ADAPTER_NORM,
    ALWAYS,
    BEHIND,
    BESIDE_EXPERTS,
    EXPERTS,
    FURTHER,
    GATED_NORM,
    HEADS,
    LEFT_OUT,
    MASK,
    MEMORY,
    NETWORKS,
    NGRAMS,
    NUMBERS,
    OF_GATED_NORM,
    OUTER,
    OUTPUT_SCALE,
    SPARSE,
    STREAMS,
    STREAMS_ENDS,
    TEXT_PARTS,
    image_tensors,
    is_of_idle_expert,
    is_of_other_language,
    is_of_shared_keys,
    is_unused_scale,
    prediction_tensors,
    read_name,
)
from archetype.errors import CheckpointError
from archetype.roles.checkpoint import MixerReader, NameTable, Shape
from archetype.roles.mixer import Mixer
from archetype.spec.registry import providers

# The side of a matrix that has the width D.
SIDE_OF_WIDTH = {"down": "outputs", "o": "outputs"} | dict.fromkeys(
    ("gate", "up", "gate_up", "q", "k", "v", "qkv"), "inputs"
)
Names = dict[str, str]  # our name of a parameter, ending in weight or bias -> the file's name


@dataclass
class Layer:
    """Tensors of one layer.

    Attributes:
        number: number of the layer in the file.
        index: its index among the layers that are read.
        prefix: prefix of the layer's tensor names in the file.
        reader: reader of the layer's kind of mixer.
        sparse: whether the layer has experts.
        mixer: Archetype's names below `mixer` -> names in the file.
        network: Archetype's names below `feedforward` -> names in the file.
        norms: names below the layer -> full names, both in the file.
        experts: tensors of single experts as (Archetype's name, index of the expert, name in the file).
        dense: Archetype's names of a network parallel to the experts -> names in the file; empty without one.
        around: Archetype's names below `feedforward` of norms, factors and convolutions around the layer's networks ->
            names in the file.
        beside: Archetype's names of attention parallel to the mixer -> names in the file; empty without one.
        memory: tensors of an n-gram memory before the mixer, by Archetype's name and the number of a part of the table.
        residual: Archetype's names below the block of the weights of residual streams -> names in the file.
        further: Archetype's names in an additional block after the layer's own -> names in the file; empty without one.
        output_scale: name of the factor on the layer's output.
    """

    number: int
    index: int
    prefix: str
    reader: MixerReader
    sparse: bool = False
    mixer: Names = field(default_factory=dict)
    network: Names = field(default_factory=dict)
    norms: Names = field(default_factory=dict)
    experts: list[tuple[str, int, str]] = field(default_factory=list)
    dense: Names = field(default_factory=dict)
    around: Names = field(default_factory=dict)
    beside: Names = field(default_factory=dict)
    memory: dict[tuple[str, int], str] = field(default_factory=dict)
    residual: Names = field(default_factory=dict)
    further: Names = field(default_factory=dict)
    output_scale: str | None = None
    d_model: int = 0

    first: int = 0  # index of its first block

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the layer becomes."""
        return 1 + bool(self.memory) + bool(self.further)

    @property
    def streams(self) -> Names:
        """The names in `residual` of weights of several residual streams."""
        return {
            param: name for param, name in self.residual.items() if "_residual." in param and param not in self.terms
        }

    @property
    def terms(self) -> Names:
        """The names in `residual` of norms or factors of the two terms of a sum."""
        return {param: name for param, name in self.residual.items() if ".carried." in param or ".added." in param}

    @property
    def block(self) -> int:
        """Index of the block with its mixer."""
        return self.first + bool(self.memory)

    def experts_transposed(self, info: CheckpointInfo) -> bool:
        """Return whether stacked experts are stored as (inputs, outputs), judged by the axis of size D."""
        if len(shape := self.experts_shape(info)) != 3:
            return False
        if self.d_model in shape[1:] and shape[1] != shape[2]:
            return shape[2] == self.d_model
        if "experts.gate_up.weight" in self.network:
            return info.shapes[self.network["experts.gate_up.weight"]][1] == self.d_model
        return _in_columns(info, "experts_layout")

    def are_stacked_by_rows(self, info: CheckpointInfo) -> bool:
        """Return whether the experts' matrices are one matrix, as in DBRX."""
        return len(info.shapes.get(self.network.get("experts.down.weight", ""), ())) == 2

    def experts_shape(self, info: CheckpointInfo) -> Shape:
        """Return the shape (E, rows, columns) of the experts' last matrices; () if each has its own tensor."""
        name = self.network.get("experts.down.weight", "")
        if not self.are_stacked_by_rows(info) or "router.weight" not in self.network:
            return info.shapes.get(name, ())
        (rows, columns), (num_experts, _) = info.sides(name), info.sides(self.network["router.weight"])
        if rows % num_experts:
            raise CheckpointError(name, f"has {rows} rows, which {num_experts} experts do not divide", "fix the file")
        return num_experts, rows // num_experts, columns


@dataclass
class GroupedTensors:
    """Tensors of a file, grouped by role.

    Attributes:
        outer: tensors outside the layers, by Archetype's names.
        layers: tensors of each layer, in order.
        left_out: names of tensors that a text decoder does not use.
        transposed: whether matrices are stored as (inputs, outputs).
        loop: layers that are computed several times (None: none).
        ngrams: tables by n-grams and their projections, by Archetype's name and number; empty without any.
    """

    outer: Names
    layers: list[Layer]
    left_out: list[str]
    transposed: bool
    d_model: int
    loop: Loop | Cycles | None = None
    ngrams: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        """Number of blocks that all layers become."""
        further = (self.loop.further if self.loop else 0) + bool(self.ngrams)
        return sum(layer.num_blocks for layer in self.layers) + further


def group_tensors(info: CheckpointInfo) -> GroupedTensors:
    """Group all tensors by role.

    Raises:
        CheckpointError: a tensor is unknown. The error names the unsupported part if the tensor names reveal it.
    """
    of_images = image_tensors(info.shapes)
    unused = {*prediction_tensors(info.shapes), *of_images, *_outside_text(info)}
    left_out = [name for name in info.shapes if name in unused or _has_no_use(info, name)]
    # by the names below which the parts of a layer are together (XLM numbers each kind of part)
    used = {name: _rename(info, name) for name in info.shapes if name not in set(left_out)}
    prefix, numbers = _numbered_layers(info, list(used.values()), of_images)
    in_layer = re.compile(rf"{re.escape(prefix)}\.(\d+)\.(.+)")
    readers = [reader for kind, reader in providers("infer") if issubclass(kind, Mixer)]
    default_reader = next(reader for reader in readers if reader.sign is None)
    layers = {
        number: Layer(number, index, f"{prefix}.{number}", default_reader) for index, number in enumerate(numbers)
    }
    outside = []
    for name, renamed in used.items():
        if (match := in_layer.fullmatch(renamed)) is None:
            outside.append(name)
            continue
        layer = layers[int(match[1])]
        # two passes: whether a layer has experts, and its kind of mixer, must be known before its tensors get their
        # roles
        layer.sparse |= SPARSE.fullmatch(match[2]) is not None
        for reader in readers:
            if reader.sign and re.fullmatch(reader.sign[0], match[2]) and len(info.shapes[name]) == reader.sign[1]:
                layer.reader = reader
    for name, renamed in used.items():
        if match := in_layer.fullmatch(renamed):
            _add_to_layer(info, layers[int(match[1])], default_reader, match[2], name)
    ngrams = {key: name for name in outside if (key := _of_ngrams(info, name)) is not None}
    ordered, outer = list(layers.values()), _outer(info, [name for name in outside if name not in ngrams.values()])
    ordered[0].first = int(bool(ngrams))  # after a block of them
    loop = read_loop(info, len(ordered))
    narrow = outer.get("embedding.project.weight")  # of OPT 350M
    d_model = info.sides(outer["embedding.token.weight"])[1] if narrow is None else info.sides(narrow)[0]
    for layer in ordered:
        layer.d_model = d_model
        if layer.dense:
            inner = {ours: name for name, ours in BESIDE_EXPERTS.items() if name in layer.norms}
            layer.around |= {ours: layer.norms.pop(name) for ours, name in inner.items()}
        if bool(layer.further) != bool(ordered[0].further):
            raise info.missing(layer.prefix, "per-layer inputs in only some layers")
        if "feedforward.up.weight" in layer.further:  # behind an adapter the layer applies its last norm again
            again = ((kind, layer.norms.get(f"{ADAPTER_NORM}.{kind}")) for kind in ("weight", "bias"))
            layer.further |= {f"feedforward_norm.{kind}": name for kind, name in again if name is not None}
        if layer.index:
            layer.first = ordered[layer.index - 1].first + ordered[layer.index - 1].num_blocks
        if loop is not None:
            layer.first = loop.first(layer.index)
    return GroupedTensors(outer, ordered, left_out, _transposed(info, ordered[0]), d_model, loop, ngrams)


def _has_no_use(info: CheckpointInfo, name: str) -> bool:
    if MASK.fullmatch(name):
        # a bias named attn.bias has one dimension; GPT-2's causal mask has four
        return len(info.shapes[name]) in (0, 4)
    computed = info.quirks.computed
    if info.is_zero(name):
        return True
    unused = (is_of_shared_keys, is_of_idle_expert, is_of_other_language, is_unused_scale)
    if any(is_unused(name, info.config) for is_unused in unused):
        return True
    return LEFT_OUT.fullmatch(name) is not None or (computed is not None and re.fullmatch(computed, name) is not None)


def _outside_text(info: CheckpointInfo) -> set[str]:
    # in a multimodal file, everything outside the text model and its head
    if info.outer_type == info.type:
        return set()
    heads = "|".join(HEADS)
    for part in TEXT_PARTS:
        if any(re.fullmatch(rf"(.*\.)?{part}\..*", name) for name in info.shapes):
            return {name for name in info.shapes if not re.fullmatch(rf"(.*\.)?({part}|{heads})\..*", name)}
    if any(re.match(r"model\.(.*\.)?\d+\.", name) for name in info.shapes):
        return {name for name in info.shapes if not re.match(rf"(model|{heads})\.", name)}
    return set()


def _numbered_layers(info: CheckpointInfo, names: list[str], of_images: list[str]) -> tuple[str, list[int]]:
    # prefix of the largest group of numbered tensors, and the numbers of the layers, but for those of images
    groups: dict[str, list[int]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*?)\.(\d+)\..+", name):
            groups.setdefault(match[1], []).append(int(match[2]))
    if not groups:
        raise CheckpointError(info.config.place, "no tensor belongs to a numbered layer", "is this a decoder?")
    # experts are numbered too, but below the layers, so the lazy pattern finds the layers first
    prefix = max(groups, key=lambda group: len(groups[group]))
    numbers = set(groups[prefix])
    passed = {int(name.removeprefix(f"{prefix}.").partition(".")[0]) for name in of_images if name.startswith(prefix)}
    if absent := set(range(max(numbers))) - numbers - passed:
        cause = "no tensor belongs to this layer"
        raise CheckpointError(f"{prefix}.{min(absent)}", cause, "is the checkpoint complete?")
    return prefix, sorted(numbers)


def _of_ngrams(info: CheckpointInfo, name: str) -> tuple[str, int] | None:
    path, _, kind = _rename(info, name).rpartition(".")
    matches = (read_name(NGRAMS, tail) for tail in _tails(path)) if kind == "weight" else ()
    return next(((match[0], match[1] or 0) for match in matches if match), None)


def _outer(info: CheckpointInfo, names: list[str]) -> Names:
    outer: Names = {}
    for name in names:
        renamed = _rename(info, name)
        if ending := next((read for tail in _tails(renamed) if (read := read_name(STREAMS_ENDS, tail))), None):
            outer[ending[0].format(ending[1])] = name
            continue
        path, _, kind = renamed.rpartition(".")
        match = next((read for tail in _tails(path) if (read := read_name(OUTER, tail))), None)
        if kind not in ("weight", "bias") or match is None:
            raise info.no_place(name)
        other = outer.setdefault(f"{match[0]}.{kind}", name)
        if other != name:
            raise CheckpointError(name, f"seems to be the same as {other}", f"{info.type} is not supported")
    if "embedding.token.weight" not in outer:
        raise CheckpointError(info.config.place, "no tensor is a token embedding", "is this a decoder?")
    return outer


def _tails(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _add_to_layer(info: CheckpointInfo, layer: Layer, attention: MixerReader, inner: str, name: str) -> None:
    # inner: name below the layer
    inner = _rename(info, inner)
    path, _, kind = inner.rpartition(".")
    if inner == OUTPUT_SCALE and info.shapes[name] == (1,):
        layer.output_scale = name
        return
    if match := read_name(MEMORY, inner):
        if layer.memory.setdefault((match[0], match[1] or 0), name) != name:
            raise info.no_place(name)
        return
    # the first table that has the whole name, then the first that has it without its ending
    whole: list[tuple[NameTable, Names]] = [(STREAMS, layer.residual), (BEHIND, layer.around)]
    whole += [(ALWAYS, layer.network), (EXPERTS, layer.network)] if layer.sparse else []
    whole += [(layer.reader.parameters, layer.mixer), (NUMBERS, layer.network)]
    for table, names in whole:
        if match := read_name(table, inner):
            _add_once(info, names, match[0], name)
            return
    if kind not in ("weight", "bias"):
        raise info.no_place(name)
    if layer.sparse and (match := read_name(EXPERTS, path)) and match[1] is not None:
        layer.experts.append((f"{match[0]}.{kind}", match[1], name))
        return
    by_path: list[tuple[NameTable, Names]] = [(FURTHER, layer.further)]
    by_path += [(EXPERTS, layer.network)] if layer.sparse else []
    by_path += [(layer.reader.names, layer.mixer)]
    by_path += [(attention.names, layer.beside)] if info.quirks.side_by_side else []
    by_path += [(NETWORKS, layer.dense if layer.sparse else layer.network)]
    for table, names in by_path:
        if match := read_name(table, path):
            _add_once(info, names, f"{match[0]}.{kind}", name)
            return
    if gated := GATED_NORM.fullmatch(path):
        layer.norms[f"{gated[1]}.{OF_GATED_NORM[gated[2]]}{kind}"] = name
    # any other vector is taken for a norm, whose place `read_wiring` looks up
    elif len(info.shapes[name]) == 1:
        layer.norms[f"{path}.{kind}"] = name
    else:
        raise info.no_place(name)


def _add_once(info: CheckpointInfo, names: Names, param: str, name: str) -> None:
    if param in names:
        raise info.no_place(name)
    names[param] = name


def _rename(info: CheckpointInfo, name: str) -> str:
    for pattern, replacement in info.quirks.renames:
        name = re.sub(rf"^{pattern}$", replacement, name)
    return name


def _in_columns(info: CheckpointInfo, name: str) -> bool:
    return bool(info.settle(name, ("rows", "columns"), "no file states how square matrices are stored") == "columns")


def _transposed(info: CheckpointInfo, layer: Layer) -> bool:
    # whether matrices are stored as (inputs, outputs): a matrix that is not square shows it by its bias or by width D
    shapes: Shapes = info.shapes
    for names in (layer.network, layer.mixer):
        for param, name in names.items():
            bias = names.get(param.removesuffix("weight") + "bias") if param.endswith("weight") else None
            shape = shapes[name]
            if bias is not None and len(shape) == 2 and shape[0] != shape[1]:
                return shapes[bias] == (shape[1],)
    single = {param: name for param, _, name in layer.experts}
    matrices = [
        (param, shapes[name])
        for param, name in (layer.network | single | layer.mixer).items()
        if param.endswith(".weight") and len(shapes[name]) == 2 and "conv" not in param and "norm" not in param
    ]
    for param, shape in matrices:
        if shape[0] != shape[1] and layer.d_model in shape and (side := SIDE_OF_WIDTH.get(param.split(".")[-2])):
            return shape[1 if side == "inputs" else 0] != layer.d_model
    return bool(matrices) and all(shape[0] == shape[1] for _, shape in matrices) and _in_columns(info, "matrix_layout")
