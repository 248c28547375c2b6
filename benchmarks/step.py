"""The parts of one decoding step on CPU: a recorded step replayed whole, and its products, attention and rest alone.

    python -m benchmarks.step --weights int4 --rows 1

The model has Llama's form, 110 M parameters (12 layers of 768, vocabulary 32,000, tied; `benchmarks.shapes`) and
random weights.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable

import torch

from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.native.arguments import OPERATIONS, Entry
from archetype.native.recorder import Replay, TorchCall
from archetype.runs.peaks import read_peak
from archetype.weights.packing import TYPES, pack_model
from benchmarks.machine import heading
from benchmarks.shapes import shape

PARTS: dict[str, Callable[[str], bool]] = {
    "whole step": lambda operation: True,
    "products": lambda operation: operation == "product",
    "attention": lambda operation: operation == "attend",
    "the rest": lambda operation: operation not in ("product", "attend"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=("float32", "bfloat16", "lossless", "int8", "int4"), default="float32")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--filled", type=int, default=160, help="tokens in the cache")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    model = build(
        shape("110M"), dtype=torch.bfloat16 if chosen.weights in ("bfloat16", "lossless") else torch.float32
    ).eval()
    assert isinstance(model, Decoder)
    if chosen.weights in TYPES:
        pack_model(model, chosen.weights)
    state = model.new_state(chosen.rows, 512)
    state.lengths += chosen.filled
    step = DecodeStep(model, state)
    step(torch.zeros(chosen.rows, 1, dtype=torch.long))
    assert step.replay is not None, "there are no native kernels"
    num_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    print(heading(f"python -m benchmarks.step --weights {chosen.weights} --rows {chosen.rows}"))
    peak, _ = read_peak(torch.device("cpu"))
    print(f"reads {peak.rate / 1e9:.1f} GB/s ({peak.path}); {num_bytes / 1e6:.0f} MB of weights")
    for name, is_part in PARTS.items():
        entries, times = selected(step.replay, is_part), []
        for _ in range(chosen.rounds):
            state.lengths.fill_(chosen.filled)
            started = time.perf_counter()
            step.replay.library.run(entries, len(entries), chosen.threads)
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times)
        speed = f"{num_bytes / seconds / 1e9:6.1f} GB/s, {chosen.rows / seconds:6.1f} tokens/s" * (name == "whole step")
        print(f"{name:<12}{1e3 * seconds:8.2f} ms  {speed}")


def selected(replay: Replay, is_part: Callable[[str], bool]) -> "ctypes.Array[Entry]":
    """The operations of a recorded step that belong to a part, as one list."""
    segments = [segment for segment in replay.segments if not isinstance(segment, TorchCall)]
    entries = [entry for segment in segments for entry in segment if is_part(OPERATIONS[entry.operation].operation)]
    return (Entry * len(entries))(*entries)


if __name__ == "__main__":
    main()
