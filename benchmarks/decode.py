"""Greedy decoding, batch 1, against transformers: prefill and decode apart.

python -m benchmarks.decode --shape 110M --dtype float32
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from archetype import Engine
from benchmarks.machine import heading, read_bandwidth
from benchmarks.peer import both

PROMPT, NEW = 128, 64


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="110M")
    parser.add_argument("--dtype", default="float32")
    chosen = parser.parse_args()
    ours, theirs = both(chosen.shape, getattr(torch, chosen.dtype))
    prompt = torch.randint(3, 4000, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()

    def archetype_tokens(count: int) -> list[int]:
        request = Engine(ours, slots=1, prefix_bytes=0).submit(prompt, temperature=0.0, max_new_tokens=count)
        request.result()
        return request.tokens

    @torch.inference_mode()
    def transformers_tokens(count: int) -> list[int]:
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
        texts = theirs.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options)
        return texts[0, PROMPT:].tolist()

    print(heading(f"python -m benchmarks.decode --shape {chosen.shape} --dtype {chosen.dtype}", "transformers"))
    agree = archetype_tokens(NEW) == transformers_tokens(NEW)
    measured = paired({"archetype": archetype_tokens, "transformers": transformers_tokens})
    weights = sum(p.nbytes for p in ours.model.parameters())
    limit = read_bandwidth()
    print(f"{'':<14}{'prefill 128':>12}{'decode':>16}{'read':>12}{'of the limit':>14}")
    for name, (prefill, rate) in measured.items():
        share = weights * rate / limit
        print(f"{name:<14}{1e3 * prefill:>9.0f} ms{rate:>10.1f} tok/s{weights * rate / 1e9:>7.1f} GB/s{share:>14.0%}")
    (our_prefill, our_rate), (their_prefill, their_rate) = measured["archetype"], measured["transformers"]
    print(f"{'ratio':<14}{their_prefill / our_prefill:>10.2f} x{our_rate / their_rate:>14.2f} x")
    print(f"limit: {limit / 1e9:.1f} GB/s read, {limit / weights:.0f} tok/s; same greedy tokens: {agree}")


def paired(candidates: dict[str, Callable[[int], list[int]]], rounds: int = 5) -> dict[str, tuple[float, float]]:
    """Medians of (prefill seconds, decoded tokens a second), the candidates taking turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, generate in candidates.items():
            started = time.perf_counter()
            generate(1)
            first = time.perf_counter() - started
            started = time.perf_counter()
            generate(NEW + 1)
            times[name].append((first, NEW / (time.perf_counter() - started - first)))
    return {
        name: (statistics.median(p for p, _ in pairs), statistics.median(r for _, r in pairs))
        for name, pairs in times.items()
    }


if __name__ == "__main__":
    main()
