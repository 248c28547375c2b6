"""The kernels that are built with the package against those compiled for this processor: decoding steps, in turn.

    python -m benchmarks.kernels

The model is that of `benchmarks.step` (Llama's form, 110 M parameters, random weights). Each row is a type of weights
and a number of sequences, each column a library; a cell is the median of tokens per second over the rounds. `native` is
`-march=native`. First come the size of each library and the seconds that its compilation takes.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from archetype.generate.step import DecodeStep
from archetype.machine.huge_pages import move_to_huge_pages
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.native.compiler import NATIVE, compile_library
from archetype.native.library import VARIABLE, library, runnable
from archetype.weights.packing import TYPES, pack_model
from benchmarks.machine import heading
from benchmarks.shapes import shape

WEIGHTS = ("float32", "bfloat16", "int8", "int4")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=WEIGHTS, nargs="+", default=WEIGHTS)
    parser.add_argument("--rows", type=int, nargs="+", default=(1, 16))
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    print(heading("python -m benchmarks.kernels"))
    flags = {variant.name: variant.flags for variant in runnable()} | {"native": (NATIVE,)}
    for name, own in flags.items():
        with tempfile.TemporaryDirectory() as folder:
            started, file = time.perf_counter(), Path(folder) / "kernels.so"
            compile_library(own, file)
            seconds = time.perf_counter() - started
            print(f"{name:<18}{file.stat().st_size / 1000:6.0f} KB {seconds:5.1f} s  {' '.join(own)}")
    print(f"\n{'tokens/s':<14}" + "".join(f"{name:>17}" for name in flags))
    for weights in chosen.weights:
        for rows in chosen.rows:
            models: dict[int, Decoder] = {}
            steps = {name: step_of(NATIVE if name == "native" else name, weights, rows, models) for name in flags}
            speeds = in_turn(steps, rows, chosen.rounds)
            print(f"{weights:<9}{rows:>3}  " + "".join(f"{speed:>17,.1f}" for speed in speeds.values()), flush=True)


def step_of(choice: str, weights: str, rows: int, models: dict[int, Decoder]) -> DecodeStep:
    """A recorded step of a model by one library; libraries whose vectors are as wide share one model in memory."""
    os.environ[VARIABLE] = choice
    library.cache_clear()
    kernels = library()
    assert kernels is not None, f"no kernels: {choice}"
    lanes = kernels.lanes if weights in TYPES else 0
    if lanes not in models:
        model = build(shape("110M"), dtype=torch.bfloat16 if weights == "bfloat16" else torch.float32).eval()
        assert isinstance(model, Decoder)
        if weights in TYPES:
            pack_model(model, weights)
        move_to_huge_pages(model)
        models[lanes] = model
    model = models[lanes]
    state = model.new_state(rows, 512)
    state.lengths += 160
    step = DecodeStep(model, state)
    step(torch.zeros(rows, 1, dtype=torch.long))
    assert step.replay is not None
    return step


def in_turn(steps: dict[str, DecodeStep], rows: int, rounds: int) -> dict[str, float]:
    """Tokens per second of each, the median of rounds in which they take turns."""
    tokens, seconds = torch.zeros(rows, 1, dtype=torch.long), {name: list[float]() for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            with torch.inference_mode():
                step.state.lengths.fill_(160)
            started = time.perf_counter()
            for _ in range(3):
                step(tokens)
            seconds[name].append((time.perf_counter() - started) / 3)
    return {name: rows / statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
