"""A mixture of experts with 8 and with 64 experts, two for each token: forward and backward.

    python -m benchmarks.experts

Both multiply equally much. What more experts cost beyond that is the memory of their weights and gradients; a batched
product over equal shares, which needs no routing, pays it as well and stands beside as the least that it can cost.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.experts.module import MixtureOfExperts
from benchmarks.machine import heading

D_MODEL, D_FF, CHOSEN = 256, 512, 2
FEW, MANY = 8, 64


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    print(heading("python -m benchmarks.experts"))
    print(f"d {D_MODEL}, d_ff {D_FF}, gated, top-{CHOSEN}, float32")
    print(f"{'tokens':<10}{'':<18}{FEW:>8} experts{MANY:>8} experts{'ratio':>10}")
    for tokens in chosen.tokens:
        x = torch.randn(1, tokens, D_MODEL, requires_grad=True)
        steps = {("archetype", number): step(mixture(number), x) for number in (FEW, MANY)}
        steps |= {("equal shares", number): step(EqualShares(number), x) for number in (FEW, MANY)}
        seconds = paired(steps, chosen.rounds)
        for name in ("archetype", "equal shares"):
            few, many = seconds[name, FEW], seconds[name, MANY]
            print(f"{tokens:<10}{name:<18}{1e3 * few:>13.0f} ms{1e3 * many:>13.0f} ms{many / few:>8.2f} x")


def mixture(number: int) -> nn.Module:
    """Ours, with so many experts."""
    expert = spec.GatedMLP(d_ff=D_FF, activation="silu")
    mixture = spec.MixtureOfExperts(num_experts=number, experts_per_token=CHOSEN, expert=expert)
    part = MixtureOfExperts(mixture, Place(D_MODEL))
    for parameter in part.parameters():
        nn.init.normal_(parameter, std=0.05)
    return part


class EqualShares(nn.Module):
    """Every expert has the same number of tokens, which lie in its order already."""

    def __init__(self, number: int) -> None:
        super().__init__()
        shapes = {"gate": (D_MODEL, D_FF), "up": (D_MODEL, D_FF), "down": (D_FF, D_MODEL)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(0.05 * torch.randn(number, *shape)))

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        """The three products of all experts, each as one."""
        rows = x.expand(CHOSEN, -1, -1).reshape(self.gate.shape[0], -1, D_MODEL)
        hidden = nn.functional.silu(rows @ self.gate) * (rows @ self.up)
        return (hidden @ self.down).view(CHOSEN, *x.shape[1:]).sum(0, keepdim=True)


def step(part: nn.Module, x: Tensor) -> Callable[[], None]:
    """Forward and backward, with new gradients as in training."""

    def take() -> None:
        part(x, ForwardContext.of(x)).sum().backward()
        part.zero_grad(set_to_none=True)
        x.grad = None

    return take


def paired(steps: dict[tuple[str, int], Callable[[], None]], rounds: int) -> dict[tuple[str, int], float]:
    """Median seconds of each, taking turns."""
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in steps}
    for take in steps.values():
        take()
    for _ in range(rounds):
        for key, take in steps.items():
            started = time.perf_counter()
            take()
            seconds[key].append(time.perf_counter() - started)
    return {key: statistics.median(times) for key, times in seconds.items()}


if __name__ == "__main__":
    main()
