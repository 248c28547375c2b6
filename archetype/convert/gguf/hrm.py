"""HRM in GGUF: two stacks of layers in turn. A file has the low stack's blocks, then the high stack's."""

from typing import Any

from archetype.convert.gguf.finish import one_pass
from archetype.convert.gguf.keys import FileKeys, Keys, unsupported
from archetype.convert.gguf.names import ATTENTION, NETWORK, OUTER
from archetype.errors import CheckpointError
from archetype.families.loops import in_turn
from archetype.families.rules import Rule, weight_rules
from archetype.spec.repeats import MAX_LAYERS

DEPTH, CYCLES, STEPS = "hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles"
STATE = "hrm.z_l_init"  # first output of the low stack


def in_cycles(keys: FileKeys, model: Any) -> Any:
    """Return the layers of all passes, which is how a file counts them."""
    depth, cycles, steps = (keys.size(name, most=MAX_LAYERS) for name in (DEPTH, CYCLES, STEPS))
    keys.used.add("hrm.prefix_lm")  # llama.cpp's mask is causal nevertheless
    keys.used_tensors.add(STATE)
    if model.num_layers != depth * cycles * (steps + 1):
        cause = f"{model.num_layers} is not {cycles} cycles of {steps} + 1 passes through {depth} layers"
        raise keys.error("block_count", cause, "fix the file")
    if (keys.vector(STATE) if STATE in keys.shapes else []) != [0.0] * model.d_model:
        raise CheckpointError(f"{keys.place}: {STATE}", "is not a vector of zeros", "this model is not supported")
    return model.replace(layers=in_turn(model.layers[:depth], model.layers[depth : 2 * depth], cycles, steps))


def cycles_keys(model: Any) -> Keys:
    depth, odd = divmod(one_pass(model).num_layers, 2)
    steps = _stored(model)[depth] // depth if depth else 0
    if odd or not steps or model.num_layers % (depth * (steps + 1)):
        raise unsupported("layers[*].weights_of", "anything but two stacks in turn in hrm_text")
    cycles = model.num_layers // (depth * (steps + 1))
    return {"block_count": model.num_layers, DEPTH: depth, CYCLES: cycles, STEPS: steps}


def first_state(model: Any) -> dict[str, list[float]]:
    return {STATE: [0.0] * model.d_model}


def rules(model: Any) -> tuple[Rule, ...]:
    """Return the rules of the layers that have weights of their own."""
    rows = list(weight_rules(OUTER))
    for block, layer in enumerate(_stored(model)):
        table = (ATTENTION + NETWORK).replace("blk.{i}", f"blk.{block}").replace("{i}", str(layer))
        rows += weight_rules(table)
    return tuple(rows)


def _stored(model: Any) -> list[int]:
    return [layer for layer, block in enumerate(model.layers) if block.weights_of is None]
