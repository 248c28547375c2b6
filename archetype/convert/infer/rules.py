"""Where each tensor of a file goes, once the specification is settled."""

from dataclasses import replace

from archetype import spec
from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.tensors import GroupedTensors, Layer, Named
from archetype.errors import CheckpointError
from archetype.families.rules import Rule, rule

# Fused queries, keys and values that lie head by head, by the name of the tensor.
HEAD_BY_HEAD = "query_key_value"


def rules_of(
    clues: CheckpointInfo, found: GroupedTensors, wirings: list[Named], model: spec.ModelSpec
) -> tuple[Rule, ...]:
    """The weight rules of a file, for a specification that the user may have changed."""
    if not isinstance(model, spec.Decoder) or model.num_layers != len(found.layers):
        cause = f"the file has {len(found.layers)} layers"
        raise CheckpointError("num_layers", cause, "leave it as it is; a trained model has all its layers")
    rules = [rule(theirs, ours) for ours, theirs in found.frame.items()]
    for layer, norms, block in zip(found.layers, wirings, model.layers, strict=True):
        rules += [rule(theirs, f"blocks.{layer.number}.{ours}") for ours, theirs in norms.items()]
        rules += _mixer(clues, layer, block, found.transposed)
        rules += _network(clues, layer, found.transposed)
    return tuple(rules)


def _mixer(clues: CheckpointInfo, layer: Layer, block: spec.Block, transposed: bool) -> list[Rule]:
    made = []
    for ours, theirs in layer.mixer.items():
        path, kind = ours.rsplit(".", 1)
        turned = transposed and len(clues.shapes[theirs]) == 2
        below = f"blocks.{layer.number}.mixer"
        if path == "qkv":
            order, parts = _fused(clues, theirs, block)
            made.append(rule(theirs, *(f"{below}.{name}.{kind}" for name in order), transposed=turned, heads=parts))
        else:
            made.append(rule(theirs, f"{below}.{ours}", transposed=turned))
    return made


def _fused(clues: CheckpointInfo, name: str, block: spec.Block) -> tuple[str, int]:
    """The order of queries, keys and values in one tensor, and how many times they follow each other."""
    if clues.habit.fused is not None:
        return clues.habit.fused
    mixer = block.mixer
    if HEAD_BY_HEAD in name and isinstance(mixer, spec.Attention):
        return "qkv", mixer.num_kv_heads or mixer.num_heads
    return "qkv", 1


def _network(clues: CheckpointInfo, layer: Layer, transposed: bool) -> list[Rule]:
    below = f"blocks.{layer.number}.feedforward"
    made = [
        replace(rule(theirs, f"{below}.{ours.removesuffix('.weight')}"), expert=number)
        for ours, number, theirs in layer.experts
    ]
    for ours, theirs in layer.network.items():
        path, kind = ours.rsplit(".", 1) if "." in ours else (ours, "")
        shape = clues.shapes[theirs]
        if ours == "correction":
            made.append(rule(theirs, f"{below}.correction", shape=shape))
        elif path == "experts.gate_up":  # of each expert, its gate before its up
            names = (f"{below}.experts.{name}" for name in ("gate", "up"))
            made.append(rule(theirs, *names, heads=shape[0], shape=shape))
        elif path == "experts.down":
            made.append(rule(theirs, f"{below}.experts.down"))
        elif path.endswith("gate_up"):
            parent = path.removesuffix("gate_up")
            names = (f"{below}.{parent}{name}.{kind}" for name in ("gate", "up"))
            made.append(rule(theirs, *names, transposed=transposed and len(shape) == 2))
        else:
            made.append(rule(theirs, f"{below}.{ours}", transposed=transposed and len(shape) == 2))
    return made
