"""Layers that are computed several times, and designs of loops over all layers: Ouro and Nanbeige 4.2."""

from collections.abc import Sequence
from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.llama import llama
from archetype.models.block.spec import Block
from archetype.models.decoder.spec import Decoder
from archetype.models.stack.spec import EarlyExit
from archetype.parts.position.spec import Rotary


def unrolled(
    blocks: Sequence[Block], passes: int, start: int = 0, end: int | None = None, **between: Any
) -> tuple[Block, ...]:
    """Return the layers of all passes over the layers from `start` to before `end`, which share their weights.

    Args:
        between: fields of the first layer of each pass after the first.
    """
    end = len(blocks) if end is None else end
    again = [block.replace(weights_of=start + index) for index, block in enumerate(blocks[start:end])]
    again[0] = again[0].replace(**between)
    return (*blocks[:end], *again * (passes - 1), *blocks[end:])


def in_turn(low: Sequence[Block], high: Sequence[Block], cycles: int, steps: int) -> tuple[Block, ...]:
    """Return the layers of all passes through two equally deep stacks that read each other's outputs (HRM).

    In each cycle the low stack reads the sum of both stacks' outputs `steps` times, and then the high stack reads it.
    The high stack's output is at first the embedding, and the low stack's is zero.
    """
    layers: list[Block] = []
    for number in range(cycles * (steps + 1)):
        cycle, step = divmod(number, steps + 1)
        stack, first = (high, steps * len(low)) if step == steps else (low, 0)
        again = len(layers) != first
        group = [block.replace(weights_of=first + index) if again else block for index, block in enumerate(stack)]
        if layers:  # the high stack's output enters each cycle, and the low stack's the pass before it
            other = cycle * (steps + 1) if step else number - 1
            group[0] = group[0].replace(norm_between=True, adds_input_of=other * len(low))
        layers += group
    return tuple(layers)


def looped(*, passes: int, early_exit: EarlyExit | None = None, **design: Any) -> Decoder:
    """Build a Llama whose layers are computed several times. `design` takes the arguments of `llama`."""
    model = llama(**design)
    return model.replace(layers=unrolled(model.layers, passes, norm_between=True), early_exit=early_exit)


OURO: dict[str, Any] = dict(d_model=2048, num_heads=16, d_ff=5632, vocab_size=49_152, context_length=65_536, eps=1e-6,
    position=Rotary(theta=1_000_000.0), sandwich=True, passes=4, early_exit=EarlyExit(threshold=1.0))  # fmt: skip
SMALL: dict[str, Any] = {"num_layers": 1, "num_heads": 4, "d_ff": 172, "passes": 2}
FAMILY = Family("loops", {
    **presets("Zhu 2025; ByteDance/Ouro-* config.json", looped, {
        "ouro-1.4b": OURO | dict(num_layers=24),
        "ouro-2.6b": OURO | dict(num_layers=48),
    }),
    **presets("Nanbeige 2026; Nanbeige/Nanbeige4.2-3B config.json", looped, {
        "nanbeige-4.2-3b": dict(num_layers=22, d_model=3072, num_heads=48, num_kv_heads=8, head_dim=128, d_ff=10_752,
            vocab_size=166_144, context_length=262_144, position=Rotary(theta=70_000_000.0), passes=2),
    }),
    **tiny(looped, {
        "ouro-tiny": SMALL | dict(sandwich=True, early_exit=EarlyExit(threshold=1.0)),
        "nanbeige-tiny": SMALL | dict(num_kv_heads=2),
    }),
})  # fmt: skip
