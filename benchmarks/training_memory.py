"""Peak memory of one training step against transformers, above weights, gradients and optimizer; a process for each.

python -m benchmarks.training_memory --batch 2 --length 512
"""

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

from archetype.families.qwen2 import qwen2
from archetype.spec import Decoder

COLUMNS = ("archetype", "archetype, recomputed", "transformers")


def shape(vocab_size: int, num_layers: int) -> Decoder:
    """The 500M shape of Qwen2.5-0.5B."""
    return qwen2(
        name="500M", vocab_size=vocab_size, num_layers=num_layers, d_model=896, d_ff=4864, num_heads=14, num_kv_heads=2,
        context_length=2048, tied=True,
    )  # fmt: skip


def main() -> None:
    """Print the table; with --only, take a step in this process and print its bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--only", choices=COLUMNS)
    chosen = parser.parse_args()
    if chosen.only is not None:
        step = theirs if chosen.only == "transformers" else ours
        print(*step(chosen, "blocks" if "recomputed" in chosen.only else "none"))
        return
    print(f"{'':<24}{'peak':>10}{'state':>10}{'above it':>10}{'ratio':>8}")
    above: dict[str, int] = {}
    for name in reversed(COLUMNS):
        command = [sys.executable, "-m", "benchmarks.training_memory", *sys.argv[1:], "--only", name]
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peak, state = map(int, done.stdout.split())
        above[name] = peak - state
        ratio = above[name] / above["transformers"]
        sizes = "".join(f"{number / 2**20:>6,.0f} MiB" for number in (peak, state, above[name]))
        print(f"{name:<24}{sizes}{ratio:>8.2f}", flush=True)


def grown(before: int) -> int:
    """Bytes of the highest resident memory of this process, above what it had after its imports."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def resident() -> int:
    """Bytes that are resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ours(chosen: argparse.Namespace, recompute: str) -> tuple[int, int]:
    """Peak, and weights with gradients and moments, of two steps here."""
    import numpy as np

    from archetype.data.corpus import Corpus
    from archetype.models.build import build
    from archetype.runs.directory import Run
    from archetype.training.loop import take_step
    from archetype.training.objectives.next_token import NextTokenObjective
    from archetype.training.recipe import Recipe
    from archetype.training.state import TrainState

    before, spec = resident(), shape(chosen.vocab_size, chosen.layers)
    tokens = np.random.default_rng(0).integers(spec.vocab_size, size=chosen.batch * chosen.length * 4, dtype=np.int32)
    objective = NextTokenObjective(Corpus(tokens, tokens, len(tokens), ""), chosen.batch, chosen.length, seed=0)
    recipe = Recipe.parse({"batch_size": chosen.batch, "dtype": "float32", "recompute": recompute})
    state = TrainState.build(Run(Path()), recipe, None, objective, build(spec))
    for _ in range(2):
        take_step(state)
    return grown(before), 16 * sum(parameter.numel() for parameter in state.model.parameters())


def theirs(chosen: argparse.Namespace, recompute: str) -> tuple[int, int]:
    """The same of transformers."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    before = resident()
    config = Qwen2Config(
        vocab_size=chosen.vocab_size, hidden_size=896, intermediate_size=4864, num_hidden_layers=chosen.layers,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(3, chosen.vocab_size, (chosen.batch, chosen.length))
    for _ in range(2):
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return grown(before), 16 * sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
