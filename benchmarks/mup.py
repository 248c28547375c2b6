"""The best learning rate at three widths, as usual and in maximal update parametrization, on the Python library's text.

python -m benchmarks.mup --steps 150
"""

import argparse
import math
import statistics
import tempfile
from pathlib import Path

import torch

from archetype import spec
from archetype.data.library_text import library_text
from archetype.families import preset
from archetype.models.build import build
from archetype.runs.directory import Run
from archetype.training.datasets import TextData
from archetype.training.loop import take_step
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.resolve import resolve_recipe
from archetype.training.schedules import Cosine
from archetype.training.state import TrainState

RATES = [2.0**power for power in range(-11, -2)]
SIZES = [
    "vocab_size=256",
    "context_length=64",
    "d_model=32",
    "layers[*].mixer.num_heads=2",
    "layers[*].feedforward.d_ff=128",
]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 4, 8])
    chosen = parser.parse_args()
    base = spec.assign(preset("gpt2-tiny"), SIZES)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(library_text()[:2_000_000])
        print(f"{'':<14}" + "".join(f"2^{math.log2(rate):<6.0f}" for rate in RATES) + "best")
        for kind in ("usual", "mup"):
            for factor in chosen.factors:
                wide = spec.widen(base, factor)
                if kind == "usual":
                    wide = wide.replace(initialization=base.initialization, head=base.head)
                losses = [final_loss(wide, rate, chosen.steps, text) for rate in RATES]
                best = RATES[losses.index(min(losses))]
                row = "".join(f"{loss:<8.3f}" for loss in losses)
                print(f"{kind:<6}{wide.d_model:>5}   {row}2^{math.log2(best):.0f}", flush=True)


def final_loss(model: spec.Decoder, rate: float, steps: int, text: Path) -> float:
    """The mean loss of the last twenty steps of a run; 9.999 where it is not finite."""
    recipe = Recipe(
        spec=model.dump(), data=TextData(text=(str(text),), tokenizer="bytes"), batch_size=8, steps=steps,
        optimizer=AdamW(learning_rate=rate), schedule=Cosine(warmup_steps=steps // 10), dtype="float32",
    )  # fmt: skip
    resolved = resolve_recipe(text.parent / "run", recipe, torch.device("cpu"))
    state = TrainState.build(Run(Path()), resolved.recipe, resolved.tokenizer, resolved.objective, build(resolved.spec))
    taken = [take_step(state) for _ in range(steps)]
    mean = statistics.mean(step.loss for step in taken[-20:])
    return mean if math.isfinite(mean) else 9.999


if __name__ == "__main__":
    main()
