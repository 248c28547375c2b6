"""The tensors of a file, grouped by what they are, and the weight rules of the specification that follows."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shapes
from archetype.convert.infer.names import (
    EXPERTS,
    LEFT_OUT,
    MASK,
    MIXERS,
    NETWORKS,
    OUTER,
    PARAMETERS,
    SIGNS,
    SPARSE,
    read_name,
)
from archetype.errors import CheckpointError
from archetype.families.rules import Rule, rule
from archetype.models.block.spec import Block
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.roles.mixer import Mixer

Names = dict[str, str]  # the name of a parameter with its kind (weight, bias) -> the file's name

# The name of tensors in which queries, keys and values lie head by head.
HEAD_BY_HEAD = "query_key_value"


@dataclass
class Layer:
    """One layer's tensors.

    Attributes:
        number: of the layer.
        prefix: of the file's names.
        sparse: whether it has experts.
        kind: of its mixer.
        mixer: by our names below `mixer`.
        network: by our names below `feedforward`.
        norms: by the file's names below the layer.
        experts: what belongs to a single expert: our name, the expert's number, and the file's name.
    """

    number: int
    prefix: str
    sparse: bool
    kind: str = "attention"
    mixer: Names = field(default_factory=dict)
    network: Names = field(default_factory=dict)
    norms: Names = field(default_factory=dict)
    experts: list[tuple[str, int, str]] = field(default_factory=list)

    def experts_transposed(self, info: CheckpointInfo) -> bool:
        """Whether experts in one tensor are kept as (inputs, outputs): their two layers show it together."""
        gate_up, down = (info.shapes[self.network[f"experts.{name}.weight"]] for name in ("gate_up", "down"))
        return gate_up[1] == down[2] and gate_up[2] == 2 * down[1]


@dataclass
class GroupedTensors:
    """A file's tensors.

    Attributes:
        outer: outside the layers, by our names.
        layers: in their order.
        left_out: those that a decoder of text has no use for.
        transposed: matrices are kept as (inputs, outputs).
    """

    outer: Names
    layers: list[Layer]
    left_out: list[str]
    transposed: bool


def group_tensors(info: CheckpointInfo) -> GroupedTensors:
    """Group all tensors by what they are.

    Raises:
        CheckpointError: names one that is not understood, and the part that it belongs to where its name shows it.
    """
    left_out = [name for name in info.shapes if _has_no_use(info, name)]
    used = [name for name in info.shapes if name not in set(left_out)]
    prefix, numbers = _numbered_layers(info, used)
    in_layer = re.compile(rf"{re.escape(prefix)}\.(\d+)\.(.+)")
    layers = {number: Layer(number, f"{prefix}.{number}", False) for number in numbers}
    outside = []
    for name in used:
        if (match := in_layer.fullmatch(name)) is None:
            outside.append(name)
            continue
        layer = layers[int(match[1])]
        layer.sparse |= SPARSE.fullmatch(match[2]) is not None
        for sign, axes, kind in SIGNS:
            if re.fullmatch(sign, match[2]) and len(info.shapes[name]) == axes:
                layer.kind = kind
    for name in used:
        if match := in_layer.fullmatch(name):
            _add_to_layer(info, layers[int(match[1])], match[2], name)
    ordered = [layers[number] for number in numbers]
    return GroupedTensors(_outer(info, outside), ordered, left_out, _transposed(info.shapes, ordered[0]))


def _has_no_use(info: CheckpointInfo, name: str) -> bool:
    if MASK.fullmatch(name):
        return len(info.shapes[name]) in (0, 4)
    computed = info.quirks.computed
    return LEFT_OUT.fullmatch(name) is not None or (computed is not None and re.fullmatch(computed, name) is not None)


def _numbered_layers(info: CheckpointInfo, names: list[str]) -> tuple[str, list[int]]:
    """The prefix of the numbered layers, the largest group of tensors with one, and their numbers."""
    groups: dict[str, list[int]] = {}
    for name in names:
        if match := re.fullmatch(r"(.*?)\.(\d+)\..+", name):
            groups.setdefault(match[1], []).append(int(match[2]))
    if not groups:
        raise CheckpointError(info.config.place, "no tensor is of a numbered layer", "is this a decoder?")
    prefix = max(groups, key=lambda group: len(groups[group]))
    numbers = sorted(set(groups[prefix]))
    if numbers != list(range(len(numbers))):
        absent = min(set(range(len(numbers))) - set(numbers))
        raise CheckpointError(f"{prefix}.{absent}", "no tensor is of this layer", "is the checkpoint complete?")
    return prefix, numbers


def _outer(info: CheckpointInfo, names: list[str]) -> Names:
    """The tensors outside the layers."""
    outer: Names = {}
    for name in names:
        path, _, kind = _rename(info, name).rpartition(".")
        match = next((read for tail in _tails(path) if (read := read_name(OUTER, tail))), None)
        if kind not in ("weight", "bias") or match is None:
            raise info.no_place(name)
        other = outer.setdefault(f"{match[0]}.{kind}", name)
        if other != name:
            raise CheckpointError(name, f"seems to be the same as {other}", f"the {info.type} family is not known")
    if "embedding.token.weight" not in outer:
        raise CheckpointError(info.config.place, "no tensor is a table of tokens", "is this a decoder?")
    return outer


def _tails(path: str) -> list[str]:
    """The path, and what is left of it without its first names, longest first."""
    parts = path.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def _add_to_layer(info: CheckpointInfo, layer: Layer, inner: str, name: str) -> None:
    """Put one tensor where it belongs; `inner` is its name below the layer."""
    inner = _rename(info, inner)
    path, _, kind = inner.rpartition(".")
    if layer.sparse and (match := read_name(EXPERTS, inner)):
        _add_once(info, layer.network, match[0], name)
        return
    if match := read_name(PARAMETERS, inner):
        _add_once(info, layer.mixer, match[0], name)
        return
    if kind not in ("weight", "bias"):
        raise info.no_place(name)
    if layer.sparse and (match := read_name(EXPERTS, path)):
        param, expert = match
        if expert is not None:
            layer.experts.append((f"{param}.{kind}", expert, name))
        else:
            _add_once(info, layer.network, f"{param}.{kind}", name)
    elif match := read_name(MIXERS[layer.kind], path):
        _add_once(info, layer.mixer, f"{match[0]}.{kind}", name)
    elif match := read_name(NETWORKS, path):
        _add_once(info, layer.network, f"{match[0]}.{kind}", name)
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


def _transposed(shapes: Shapes, layer: Layer) -> bool:
    """Whether matrices are kept as (inputs, outputs), which shows where a bias is beside one that is not square."""
    for names in (layer.network, layer.mixer):
        for param, name in names.items():
            bias = names.get(param.removesuffix("weight") + "bias") if param.endswith("weight") else None
            shape = shapes[name]
            if bias is not None and len(shape) == 2 and shape[0] != shape[1]:
                return shapes[bias] == (shape[1],)
    return False


def inferred_rules(
    info: CheckpointInfo, tensors: GroupedTensors, norms: list[Names], model: ModelSpec
) -> tuple[Rule, ...]:
    """The weight rules of a file, for a specification that the user may have changed.

    Args:
        info: of the checkpoint.
        tensors: all of the file's.
        norms: of each layer, by our names.
        model: the specification.

    Raises:
        CheckpointError: the specification has another number of layers.
    """
    if not isinstance(model, Decoder) or model.num_layers != len(tensors.layers):
        cause = f"the file has {len(tensors.layers)} layers"
        raise CheckpointError("num_layers", cause, "leave it as it is; a trained model has all its layers")
    rules = [rule(name, param) for param, name in tensors.outer.items()]
    for layer, names, block in zip(tensors.layers, norms, model.layers, strict=True):
        rules += [rule(name, f"blocks.{layer.number}.{param}") for param, name in names.items()]
        rules += _mixer_rules(info, layer, block, tensors.transposed)
        rules += _feedforward_rules(info, layer, tensors.transposed)
    return tuple(rules)


def _mixer_rules(info: CheckpointInfo, layer: Layer, block: Block, transposed: bool) -> list[Rule]:
    rules, below = [], f"blocks.{layer.number}.mixer"
    for param, name in layer.mixer.items():
        path, _, kind = param.rpartition(".")
        matrix = transposed and len(info.shapes[name]) == 2
        if (joint := _joint(info, layer, path, name, block.mixer)) is not None:
            parts, heads = joint
            rules.append(rule(name, *(f"{below}.{part}.{kind}" for part in parts), transposed=matrix, heads=heads))
        else:
            rules.append(rule(name, f"{below}.{param}", transposed=matrix))
    return rules


def _joint(info: CheckpointInfo, layer: Layer, path: str, name: str, mixer: Mixer) -> tuple[Iterable[str], int] | None:
    """The parts that lie in one tensor, and how many times they follow each other; None where it is one part."""
    if isinstance(mixer, GatedDeltaNet):
        parts = {"qkvz": ("q", "k", "v", "gate"), "ba": ("b", "a"), "qkv": ("q", "k", "v")}
        return (parts[path], 1 if path == "qkv" else mixer.key_heads) if path in parts else None
    if path == "q" and isinstance(mixer, Attention) and mixer.gate is not None and "gate.weight" not in layer.mixer:
        return ("q", "gate"), mixer.num_heads
    if path != "qkv":
        return None
    if info.quirks.fused_order is not None:
        return info.quirks.fused_order
    if HEAD_BY_HEAD in name and isinstance(mixer, Attention):
        return "qkv", mixer.num_kv_heads or mixer.num_heads
    return "qkv", 1


def _feedforward_rules(info: CheckpointInfo, layer: Layer, transposed: bool) -> list[Rule]:
    below = f"blocks.{layer.number}.feedforward"
    # one rule for the tensors of all experts
    places = {
        re.sub(rf"\bexperts\.{number}\.", "experts.{e}.", name): f"{below}.{param.removesuffix('.weight')}"
        for param, number, name in layer.experts
    }
    rules = [rule(name, param) for name, param in places.items()]
    for param, name in layer.network.items():
        path, kind = param.rsplit(".", 1) if "." in param else (param, "")
        shape = info.shapes[name]
        if param == "correction":
            rules.append(rule(name, f"{below}.correction", shape=shape))
        elif path == "experts.gate_up":  # of each expert, its gate before its up
            params = (f"{below}.experts.{part}" for part in ("gate", "up"))
            rules.append(rule(name, *params, heads=shape[0], shape=shape, transposed=layer.experts_transposed(info)))
        elif path == "experts.down":
            rules.append(rule(name, f"{below}.experts.down", transposed=layer.experts_transposed(info)))
        elif path.endswith("gate_up"):
            parent = path.removesuffix("gate_up")
            params = (f"{below}.{parent}{part}.{kind}" for part in ("gate", "up"))
            rules.append(rule(name, *params, transposed=transposed and len(shape) == 2))
        else:
            rules.append(rule(name, f"{below}.{param}", transposed=transposed and len(shape) == 2))
    return rules
