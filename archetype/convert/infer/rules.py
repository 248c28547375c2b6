"""Weight rules for an inferred specification."""

import re
from dataclasses import replace

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.feedforward import gate_up_order
from archetype.convert.infer.mixer import InferredMixer, ModelDims
from archetype.convert.infer.tensors import GroupedTensors, Layer, Names
from archetype.errors import CheckpointError
from archetype.families.rules import Rule, rule
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether
from archetype.roles.checkpoint import MixerReader
from archetype.roles.feedforward import FeedForward
from archetype.roles.mixer import Mixer
from archetype.spec.registry import provided


def inferred_rules(
    info: CheckpointInfo, tensors: GroupedTensors, norms: list[Names], model: ModelSpec
) -> tuple[Rule, ...]:
    """Return the weight rules for a specification that the user may have changed after it was inferred.

    Raises:
        CheckpointError: the specification and the file have different numbers of layers.
    """
    num_blocks = tensors.num_blocks
    if not isinstance(model, Decoder) or model.num_layers != num_blocks:
        cause = f"the file has {num_blocks} layers"
        raise CheckpointError("num_layers", cause, "leave it as it is; a trained model has all its layers")
    dims = ModelDims(model.d_model, model.context_length, tensors.transposed)
    rules = [
        rule(name, param, padding=_padding(info, name) if param == "lm_head.weight" else 0, unused=True)
        for param, name in tensors.outer.items()
    ]
    rules += _ngram_rules(info, tensors)
    for layer, names in zip(tensors.layers, norms, strict=True):
        rules += [rule(name, f"blocks.{layer.block}.{param}") for param, name in names.items()]
        below, block = f"blocks.{layer.block}", model.layers[layer.block]
        for names_of_mixer, mixer, path in _mixers(layer, block.mixer):
            rules += _mixer_rules(InferredMixer(info, layer, dims, names_of_mixer), mixer, f"{below}.{path}")
        rules += _network_rules(info, layer, tensors.transposed, block.feedforward, f"{below}.feedforward")
        rules += [rule(name, f"{below}.{param}") for param, name in layer.residual.items()]
        rules += _memory_rules(info, layer, model)
        last = f"blocks.{layer.block + bool(layer.further)}"
        rules += [rule(name, f"{last}.{param}") for param, name in layer.further.items()]
        if layer.output_scale is not None:
            rules.append(rule(layer.output_scale, f"{last}.output_scale"))
    return tuple(rules)


def _ngram_rules(info: CheckpointInfo, tensors: GroupedTensors) -> list[Rule]:
    rules, below, rows = [], "blocks.0.feedforward", 0
    for (param, number), name in sorted(tensors.ngrams.items(), key=lambda item: item[0][1]):
        if param == "table":
            count = info.sides(name)[0]
            rules.append(rule(name, f"{below}.table", rows=(rows, rows + count)))
            rows += count
        elif number == 0:  # one rule for all
            rules.append(rule(re.sub(r"\b0\b", "{e}", name), f"{below}.projections"))
    return rules


def unpadded(info: CheckpointInfo, rows: int) -> int:
    """Return how many rows of a head are of ids: all, or those before the ones that its class cuts (Inkling)."""
    return min(rows, info.size(("unpadded_vocab_size",)) or rows)


def _padding(info: CheckpointInfo, head: str) -> int:
    rows = info.sides(head)[0]
    return rows - unpadded(info, rows)


def _memory_rules(info: CheckpointInfo, layer: Layer, model: Decoder) -> list[Rule]:
    rules, below, rows = [], f"blocks.{layer.first}.feedforward", 0
    for (param, _), name in sorted(layer.memory.items()):
        path, _, kind = param.rpartition(".")
        if param == "table":
            count = info.sides(name)[0]
            rules.append(rule(name, f"{below}.table", rows=(rows, rows + count)))
            rows += count
        elif path.endswith("_norm") and (streams := model.layers[layer.first].feedforward.reads_streams):
            rules.append(rule(name, *(f"{below}.{path}.{stream}.{kind}" for stream in range(streams))))
        else:
            rules.append(rule(name, f"{below}.{param}"))
    return rules


def _mixers(layer: Layer, mixer: Mixer) -> list[tuple[Names, Mixer, str]]:
    # tensors, specification and path of each mixer
    if not layer.beside:
        return [(layer.mixer, mixer, "mixer")]
    if not isinstance(mixer, MixersTogether) or len(mixer.parts) != 2:
        raise CheckpointError(f"layers[{layer.number}].mixer", "the file has two parallel mixers", "leave both")
    pairs = zip((layer.beside, layer.mixer), mixer.parts, strict=True)
    return [(names, part, f"mixer.parts.{index}") for index, (names, part) in enumerate(pairs)]


def _mixer_rules(tensors: InferredMixer, mixer: Mixer, below: str) -> list[Rule]:
    rules = []
    # by the mixer's current kind, which the user may have changed
    reader: MixerReader | None = provided("infer", type(mixer))
    for param, name in tensors.names.items():
        path, _, kind = param.rpartition(".")
        matrix = tensors.transposed and len(tensors.shapes[param]) == 2
        joint = reader.joint(mixer, tensors, path, name) if reader is not None else None
        if joint is not None:
            parts = (f"{below}.{part}.{kind}" for part in joint.parts)
            rules.append(rule(name, *parts, transposed=matrix, heads=joint.times, rows=joint.rows))
        else:
            # Kimi Linear's A_log is (1, 1, heads, 1)
            padding = 0 if reader is None else reader.padding(mixer, tensors, param)
            shape = None if kind in ("weight", "bias") or padding else tensors.shapes[param]
            rules.append(rule(name, f"{below}.{param}", transposed=matrix, shape=shape, padding=padding))
    return rules


def _gate_and_up(info: CheckpointInfo, num_rows: int) -> tuple[tuple[str, str], int]:
    # the order of gate and up in a tensor with this many rows, and how often the order repeats
    order = gate_up_order(info)
    return ("up", "gate") if order == "up_gate" else ("gate", "up"), num_rows // 2 if order == "gate_up_in_turn" else 1


def _network_rules(
    info: CheckpointInfo, layer: Layer, transposed: bool, feedforward: FeedForward, below: str
) -> list[Rule]:
    if not isinstance(feedforward, FeedForwardsTogether):
        return _feedforward_rules(info, layer, transposed, below)
    rules = [rule(name, f"{below}.{param}") for param, name in layer.around.items()]
    if not layer.dense:  # one network with factors (Falcon-H1, Inkling)
        return rules + _feedforward_rules(info, layer, transposed, f"{below}.parts.0")
    dense = replace(layer, network=layer.dense, experts=[])
    rules += _feedforward_rules(info, dense, transposed, f"{below}.parts.0")
    return rules + _feedforward_rules(info, layer, transposed, f"{below}.parts.1")


def _feedforward_rules(info: CheckpointInfo, layer: Layer, transposed: bool, below: str) -> list[Rule]:
    # one rule for the tensors of all experts
    params_of_experts = {
        re.sub(rf"\bexperts\.{expert}\.", "experts.{e}.", name): f"{below}.{param.removesuffix('.weight')}"
        for param, expert, name in layer.experts
    }
    rules = [rule(name, param) for name, param in params_of_experts.items()]
    # experts that every token selects are the last ones of the stack
    count, further = (
        info.shapes[name][0] if (name := layer.network.get(f"{kind}.down.weight")) else 0
        for kind in ("experts", "always")
    )
    own = (0, count) if further else None
    for param, name in layer.network.items():
        path, kind = param.rsplit(".", 1) if "." in param else (param, "")
        shape = info.shapes[name]
        if path == "router" and "router.table" in layer.network and kind != "table":  # a projection beside the table
            rules.append(rule(name, f"{below}.router.projection.{kind}", transposed=transposed))
        elif param == "correction":
            rules.append(rule(name, f"{below}.correction", shape=shape))
        elif path == "experts.gate_up":  # (experts, rows, columns)
            is_transposed = layer.experts_transposed(info)
            parts, times = _gate_and_up(info, shape[2 if is_transposed else 1])
            params = (f"{below}.experts.{part}" for part in parts)
            # rows repeat gate and up once per expert (or once per row, if interleaved): E times in (E, 2 F, D)
            fused = rule(name, *params, heads=shape[0] * times, shape=shape, rows=own, transposed=is_transposed)
            rules.append(fused)
        elif path.startswith("always."):
            path = path.replace("always.", "experts.")
            rules.append(rule(name, f"{below}.{path}", rows=(count, count + further), transposed=transposed))
        elif path in ("experts.gate", "experts.up", "experts.down"):
            stacked = layer.are_stacked_by_rows(info)  # then those to inner features are never transposed
            is_transposed = layer.experts_transposed(info) and (path == "experts.down" or not stacked)
            rules.append(rule(name, f"{below}.{path}", transposed=is_transposed, stacked=stacked, rows=own))
        elif path.endswith("gate_up"):
            parent = path.removesuffix("gate_up")
            is_transposed = transposed and len(shape) == 2
            parts, times = _gate_and_up(info, shape[1 if is_transposed else 0])
            params = (f"{below}.{parent}{part}.{kind}" for part in parts)
            rules.append(rule(name, *params, transposed=is_transposed, heads=times))
        else:
            is_matrix = transposed and len(shape) == 2
            named = kind in ("weight", "bias")  # else it may have further dimensions of size 1
            rules.append(rule(name, f"{below}.{param}", transposed=is_matrix, shape=None if named else shape))
    return rules
