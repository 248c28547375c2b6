"""An experiment whose runs take a fraction of a second."""

from pathlib import Path
from typing import Any

from archetype.studies.experiment import Experiment
from archetype.studies.store import Store
from archetype.studies.study import Study

BASE: dict[str, Any] = {
    "version": 1, "vocab_size": 20, "context_length": 8, "d_model": 8, "final_norm": "rms",
    "layers": [{
        "wiring": {"kind": "pre_norm", "norm": "rms"},
        "mixer": {"kind": "attention", "num_heads": 2, "position": "rotary"},
        "feedforward": {"kind": "gated", "d_ff": 16, "activation": "silu"},
    }],
}  # fmt: skip
DATA = {"kind": "recall", "symbols": 12, "num_pairs": 2, "length": 8, "held_out_rows": 8}
RECIPE = {
    "batch_size": 4, "optimizer": {"kind": "adamw", "learning_rate": 0.01}, "schedule": {"kind": "wsd"},
    "evaluate_every": 1000, "checkpoint_every": 2,
}  # fmt: skip


def trained(**more: Any) -> dict[str, Any]:
    """A part with two arms of six steps."""
    return {
        "id": "width", "type": "trained", "says": "Wider is better", "base": BASE, "data": DATA, "recipe": RECIPE,
        "arms": {"a": {}, "wide": {"d_model": 16}}, "seeds": 2, "metric": {"name": "test.loss"},
        "decide": {"kind": "difference"}, "modes": {"quick": {"tokens": 64}, "full": {"tokens": 192}},
    } | more  # fmt: skip


def experiment(*parts: dict[str, Any], **more: Any) -> Experiment:
    """Of some parts."""
    return Experiment.parse({"title": "Width", "parts": list(parts) or [trained()]} | more)


def study(folder: Path, mode: str = "full", *parts: dict[str, Any], **more: Any) -> Study:
    """In a store of its own."""
    return Study(experiment(*parts, **more), mode, folder, Store(folder / "store"))
