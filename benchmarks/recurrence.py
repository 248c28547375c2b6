"""How the time of recurrent mixers grows with the length: forward and backward of one mixer.

python -m benchmarks.recurrence --length 512 --times 4
"""

import argparse
import statistics
import time

import torch

from archetype import spec
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_mixer
from benchmarks.machine import heading

ROUNDS = 5
MIXERS: dict[str, spec.Mixer] = {
    "rnn": spec.RNN(),
    "lstm": spec.LSTM(),
    "gru": spec.GRU(),
    "mamba": spec.Mamba(),
    "attention": spec.Attention(num_heads=4),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--times", type=int, default=4, help="how much longer the longer text is")
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--batch", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(2)
    command = f"--length {chosen.length} --times {chosen.times} --d-model {chosen.d_model} --batch {chosen.batch}"
    print(heading(f"python -m benchmarks.recurrence {command}"))
    lengths = (chosen.length, chosen.length * chosen.times)
    print(f"{'':<12}" + "".join(f"{f'{length:,} tokens':>16}" for length in lengths) + f"{'ratio':>10}")
    for name, mixer in MIXERS.items():
        short, long = measured(mixer, chosen.d_model, chosen.batch, lengths)
        print(f"{name:<12}{1e3 * short:>13.1f} ms{1e3 * long:>13.1f} ms{long / short:>8.2f} x")


def measured(mixer: spec.Mixer, d_model: int, batch: int, lengths: tuple[int, int]) -> tuple[float, float]:
    """Median seconds at both lengths, taking turns."""
    module = build_mixer(mixer, Place(d_model, causal=True, layer=0))
    initialize(module, spec.NormalInitialization(), 1, seed=0)
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 1):
        for times, length in zip(seconds, lengths, strict=True):
            x = torch.randn(batch, length, d_model, requires_grad=True)
            started = time.perf_counter()
            y = module(x, ForwardContext.of(x))
            y.sum().backward()
            if turn:  # the first warms up
                times.append(time.perf_counter() - started)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


if __name__ == "__main__":
    main()
