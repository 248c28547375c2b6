"""One optimizer step against transformers: forward, backward, clipping, AdamW.

python -m benchmarks.training_step --shape 15M --dtype float32 --batch 8 --length 256
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch

from archetype.estimate.report import cost_report
from archetype.native.kernels import plain_operations
from archetype.runs.peaks import product_peak
from archetype.training.objectives.base import Batch, Objective
from archetype.training.optimizers import AdamW
from benchmarks.machine import heading
from benchmarks.peer import both


class Rows(Objective):
    """The next token of the same rows at each step, with the loss that every run has."""

    description, fingerprint, num_validation_batches = "rows", "", 1

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens

    def batch(self, step: int) -> Batch:
        return (self.tokens,)

    def validation_batch(self, index: int) -> Batch:
        return (self.tokens,)

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        (tokens,) = batch
        return {"tokens": tokens[:, :-1]}, tokens[:, 1:]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="15M")
    parser.add_argument("--dtype", default="float32", help="float32, or bfloat16 by autocast")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    chosen = parser.parse_args()
    ours, theirs = both(chosen.shape, torch.float32)
    tokens = torch.randint(3, 4000, (chosen.batch, chosen.length + 1), generator=torch.Generator().manual_seed(0))
    rows = Rows(tokens)
    our_model, their_model = ours.model.train(), theirs.train()

    def step(model: torch.nn.Module, loss_of: Callable[[], torch.Tensor], plain: bool = False) -> Callable[[], None]:
        optimizer = AdamW(learning_rate=1e-4).build(model)

        def take() -> None:
            with plain_operations() if plain else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=chosen.dtype == "bfloat16"):
                    loss = loss_of()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return take

    def our_loss() -> torch.Tensor:
        return rows.compute_loss(our_model, rows.batch(0)).loss

    steps = {
        "archetype": step(our_model, our_loss),
        "not fused": step(our_model, our_loss, plain=True),
        "transformers": step(their_model, lambda: their_model(input_ids=tokens, labels=tokens).loss),
    }
    command = f"--shape {chosen.shape} --dtype {chosen.dtype} --batch {chosen.batch} --length {chosen.length}"
    print(heading(f"python -m benchmarks.training_step {command}", "transformers"))
    seconds = paired(steps)
    flops = cost_report(ours.spec, chosen.batch, chosen.length).flops["train"]
    limit = product_peak(torch.device("cpu"), getattr(torch, chosen.dtype)).raised(flops / min(seconds.values()))
    print(f"{'':<14}{'step':>10}{'tokens/s':>12}{'GFLOP/s':>12}{'of the limit':>14}")
    for name, taken in seconds.items():
        rate, speed = chosen.batch * chosen.length / taken, flops / taken
        print(f"{name:<14}{1e3 * taken:>7.0f} ms{rate:>12,.0f}{speed / 1e9:>12.0f}{speed / limit.rate:>14.0%}")
    print(f"{'ratio':<14}{seconds['transformers'] / seconds['archetype']:>8.2f} x")
    print(f"limit: {limit.rate / 1e9:.0f} GFLOP/s of a square matrix product in {chosen.dtype} ({limit.path})")


def paired(steps: dict[str, Callable[[], None]], rounds: int = 8) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for take in steps.values():
        take()
    for _ in range(rounds):
        for name, take in steps.items():
            started = time.perf_counter()
            take()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
