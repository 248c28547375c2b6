"""Inference of loops: layers that are computed several times become layers with shared weights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.models.block.spec import Block
from archetype.spec.repeats import MAX_LAYERS

LOOP = ("n_input_layers", "n_recurrent_layers", "n_output_layers")  # of Dory: layers before, in and after the loop
PASSES = "n_recurrent_loops"


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

    def unrolled(self, blocks: Sequence[Block]) -> tuple[Block, ...]:
        """Return the layers of all passes."""
        again = [
            block.replace(weights_of=self.start + index) for index, block in enumerate(blocks[self.start : self.end])
        ]
        again[0] = again[0].replace(**self.between)
        return (*blocks[: self.end], *again * (self.passes - 1), *blocks[self.end :])


def read_loop(info: CheckpointInfo, num_layers: int) -> Loop | None:
    """Return the loop of a model whose file has `num_layers` layers; None if it has no loop."""
    config = info.config
    if (key := info.quirks.loops) is not None:  # over all layers (Ouro, Nanbeige 4.2)
        normed = not config.flag("skip_loop_final_norm", False)
        return Loop(0, num_layers, config.size(key, most=MAX_LAYERS), {"norm_between": normed})
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
