"""Inference of loops: layers that are computed several times become layers with shared weights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.families.loops import in_turn, unrolled
from archetype.models.block.spec import Block
from archetype.spec.repeats import MAX_LAYERS

LOOP = ("n_input_layers", "n_recurrent_layers", "n_output_layers")  # of Dory: layers before, in and after the loop
PASSES = "n_recurrent_loops"
CYCLES = ("H_cycles", "L_cycles")  # of HRM


class Loop(NamedTuple):
    """Layers of a file that are computed several times.

    Attributes:
        start: index of the first layer.
        end: index after the last layer.
        passes: number of passes.
        between: fields of the first layer of each pass but the first.
    """

    start: int
    end: int
    passes: int
    between: Mapping[str, Any]

    @property
    def further(self) -> int:
        """Number of additional layers of the model, compared with the file."""
        return (self.end - self.start) * (self.passes - 1)

    def first(self, layer: int) -> int:
        """Return the index of the first layer of the model that is a layer of the file."""
        return layer + self.further * (layer >= self.end)

    def unrolled(self, blocks: Sequence[Block]) -> tuple[Block, ...]:
        """Return the layers of all passes."""
        return unrolled(blocks, self.passes, self.start, self.end, **self.between)


class Cycles(NamedTuple):
    """Two stacks in turn (see `in_turn`), whose layers alternate in the file (HRM).

    Attributes:
        num_layers: layers of each stack.
        cycles: number of passes through the high stack.
        steps: number of passes through the low stack in each cycle.
    """

    num_layers: int
    cycles: int
    steps: int

    @property
    def further(self) -> int:
        """Number of additional layers of the model, compared with the file."""
        return self.num_layers * (self.cycles * (self.steps + 1) - 2)

    def first(self, layer: int) -> int:
        """Return the index of the first layer of the model that is a layer of the file."""
        number, is_high = divmod(layer, 2)
        return number + is_high * self.steps * self.num_layers

    def unrolled(self, blocks: Sequence[Block]) -> tuple[Block, ...]:
        """Return the layers of all passes."""
        return in_turn(blocks[::2], blocks[1::2], self.cycles, self.steps)


def read_loop(info: CheckpointInfo, num_layers: int) -> Loop | Cycles | None:
    """Return the loop of a model whose file has `num_layers` layers; None if it has no loop."""
    config = info.config
    if (key := info.quirks.loops) is not None:  # over all layers (Ouro, Nanbeige 4.2)
        normed = not config.flag("skip_loop_final_norm", False)
        return Loop(0, num_layers, config.size(key, most=MAX_LAYERS), {"norm_between": normed})
    if config.get(CYCLES[0]) is not None:
        cycles, steps = (config.size(key, most=MAX_LAYERS) for key in CYCLES)
        loops = Cycles(num_layers // 2, cycles, steps)
        config.expect("num_layers_per_stack", loops.num_layers, "the file has this number of layers in each stack")
        return loops
    if config.get(PASSES) is None:
        return None
    before, _, after = (config.get(key) for key in LOOP)
    if not (isinstance(before, int) and isinstance(after, int) and 0 <= before < num_layers - after <= num_layers):
        raise config.error(LOOP[0], f"and {LOOP[2]} leave no layers of {num_layers} for the loop", "fix the file")
    if config.get(LOOP[1]) is not None:
        config.expect(LOOP[1], num_layers - before - after, "the file has this number of further layers")
    # each pass but the first starts from the sum of the loop's input and the last output, each scaled to length 1
    loop = Loop(before, num_layers - after, config.size(PASSES, most=MAX_LAYERS), {"reinject": "unit"})
    if loop.passes > 1:  # otherwise cached keys are those of the last pass, but keys of tokens given together are not
        config.expect("recurrent_kv_cache_mode", "per_loop", "passes that read the keys of the last one")
    return loop
