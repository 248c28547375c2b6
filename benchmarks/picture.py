"""The picture of the guide to costs: models that differ in one line of their files, and what a longer text costs each.

python -m benchmarks.picture docs/picture.svg
"""

import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import archetype
from archetype.estimate.report import CostReport
from archetype.io.figure_file import figure_bytes

ATTENTION = {"kind": "attention", "num_heads": 32, "position": {"kind": "rotary"}}
LATENT = {
    "kind": "latent", "num_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}  # fmt: skip
MIXERS: dict[str, dict[str, Any]] = {
    "attention": ATTENTION,
    "num_kv_heads: 8": ATTENTION | {"num_kv_heads": 8},
    "latent attention": LATENT,
    "window of 1,024": ATTENTION | {"num_kv_heads": 8, "pattern": {"kind": "window", "size": 1024}},
    "Mamba": {"kind": "mamba"},
}
LENGTHS = [2**n for n in range(7, 16)]


def report(mixer: dict[str, Any], length: int) -> CostReport:
    """The cost of a decoder of 32 layers with this mixer."""
    layer = {
        "wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}},
        "mixer": mixer,
        "feedforward": {"kind": "gated", "d_ff": 11_008, "activation": "silu"},
    }
    spec = {
        "version": 1, "kind": "decoder", "vocab_size": 32_000, "context_length": LENGTHS[-1], "d_model": 4096,
        "layers": [{"repeat": 32, "block": layer}], "final_norm": {"kind": "rms"}, "initialization": {"kind": "normal"},
    }  # fmt: skip
    return archetype.cost_report(spec, batch=1, length=length)


def draw() -> Figure:
    """The state of one text, beside the work of its next token."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, mixer in MIXERS.items():
        reports = [report(mixer, length) for length in LENGTHS]
        left.plot(LENGTHS, [r.state["bytes"] / 2**30 for r in reports], label=name)
        right.plot(LENGTHS, [r.flops["decode"] / 1e9 for r in reports])
    left.set(xscale="log", yscale="log", title="State of one text (GiB, bfloat16)")
    right.set(xscale="log", title="One more token (GFLOPs)")
    left.legend(frameon=False, fontsize="small")
    for axes in (left, right):
        axes.set_xticks(LENGTHS[::2], [f"{length:,}" for length in LENGTHS[::2]])
        axes.minorticks_off()
        axes.set_xlabel("tokens of the text")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(figure_bytes(draw(), ".svg"))
