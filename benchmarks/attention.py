"""One layer of attention with each pattern, forward and backward, at a length and at four times that length.

    python -m benchmarks.attention

Full attention has sixteen times as many pairs then, a window four times, and a pattern whose stride is the square root
of the length eight times. The share is of the limit of the machine, for the FLOPs of the pairs that are allowed and of
the projections; what is computed beside them, where a tile's pairs are not all allowed, is printed with it.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch

from archetype import spec
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from archetype.roles.pattern import MaskContext, pattern_rule
from archetype.runs.peaks import product_peak
from benchmarks.machine import heading

D_MODEL, HEADS, WINDOW, SUMMARY = 256, 4, 256, 8
PATTERNS: dict[str, tuple[Callable[[int], spec.Pattern], float | None]] = {  # by length, and the most that 4x may cost
    "full": (lambda length: spec.Full(), None),
    "window": (lambda length: spec.Window(size=WINDOW), 4.4),
    "strided": (lambda length: spec.Strided(stride=math.isqrt(length)), 8.8),
    "fixed": (lambda length: spec.Fixed(stride=math.isqrt(length), num_summary=SUMMARY), 8.8),
}
Case = tuple[str, int]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    lengths = (chosen.length, 4 * chosen.length)
    print(heading(f"python -m benchmarks.attention --length {chosen.length} --threads {chosen.threads}"))
    seconds = taking_turns({(name, length): step(name, length) for name in PATTERNS for length in lengths})
    fastest = max(flops(*case)[0] / taken for case, taken in seconds.items())
    limit = product_peak(torch.device("cpu"), torch.float32).raised(fastest)
    print(f"{'':<10}" + "".join(f"{length:>8} tokens{'share':>8}{'in tiles':>10}" for length in lengths) + "   ratio")
    for name, (_, most) in PATTERNS.items():
        line = f"{name:<10}"
        for length in lengths:
            taken = seconds[name, length]
            allowed, computed = flops(name, length)
            line += f"{1e3 * taken:>12.0f} ms{allowed / taken / limit.rate:>8.0%}{computed / allowed:>8.2f} x"
        ratio = seconds[name, lengths[1]] / seconds[name, lengths[0]]
        print(f"{line}{ratio:>8.2f}" + (f"  (target: at most {most})" if most else ""))
    print(f"limit: {limit.rate / 1e9:.0f} GFLOP/s of a square matrix product in float32 ({limit.path})")


def step(name: str, length: int) -> Callable[[], None]:
    """Forward and backward of one text, causal, in float32."""
    part = Attention(spec.Attention(num_heads=HEADS, pattern=PATTERNS[name][0](length)), Place(D_MODEL, causal=True))
    initialize(part, spec.NormalInitialization(), num_layers=1, seed=0)
    x = torch.randn(1, length, D_MODEL, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def take() -> None:
        part(x, ForwardContext.of(x)).sum().backward()
        part.zero_grad(set_to_none=True)
        x.grad = None

    return take


def flops(name: str, length: int) -> tuple[int, int]:
    """Of the allowed pairs, and of those that tiles compute; both with the four projections, times three to train."""
    pattern, context = PATTERNS[name][0](length), MaskContext(causal=True, length=length)
    projections = 4 * 2 * length * D_MODEL**2
    pairs = (pattern_rule(pattern).pairs(context), pattern_rule(pattern).num_computed_pairs(context))
    allowed, computed = (3 * (projections + 4 * count * D_MODEL) for count in pairs)
    return allowed, computed


def taking_turns(steps: dict[Case, Callable[[], None]], rounds: int = 9) -> dict[Case, float]:
    """Median seconds of each, all of them once in every round."""
    seconds: dict[Case, list[float]] = {case: [] for case in steps}
    for take in steps.values():
        take()
    for _ in range(rounds):
        for case, take in steps.items():
            started = time.perf_counter()
            take()
            seconds[case].append(time.perf_counter() - started)
    return {case: statistics.median(times) for case, times in seconds.items()}


if __name__ == "__main__":
    main()
