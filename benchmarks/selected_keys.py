"""Attention to selected or pooled keys: training and decoding compared with other libraries.

    python -m benchmarks.selected_keys [--length 512] [--processor-time]

Each row is a small model with the same random weights in both programs, read from the folder that transformers writes:
the types of the tests' small models with a width of 256, indexes that select fewer keys than there are, and one layer
of each kind. A training step is a forward and a backward pass over 2 sequences. Decoding is one more token of each on a
state of that length, as generation computes it: recorded here, with a cache in transformers. Medians of turns that
alternate. Another process writes the folders, since the tests' helpers check the shapes of every call.

Gemma 3n selects no keys. It is here for AltUp and LAuReL, which are not measured elsewhere. Native sparse attention is
one mixer. transformers does not have it, so the peer is flash-linear-attention's naive functions (`make fla`), which
compute whole sequences only.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import archetype
from archetype import spec
from archetype.generate import DecodeStep
from benchmarks import fla_forms, linear_recurrence
from benchmarks.linear_recurrence import timed
from benchmarks.machine import heading

ROUNDS, BATCH, WIDTH, STEPS = 5, 2, 256, 4  # STEPS: tokens decoded in one turn
SIZES: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "max_position_embeddings": 4096}
TYPES: dict[str, dict[str, Any]] = {
    "deepseek_v32": {"index_topk": 128, "index_head_dim": 32},
    "glm_moe_dsa": {"index_topk": 128, "index_head_dim": 32},
    "deepseek_v4": {"index_topk": 64, "sliding_window": 64},
    "hy_v4": {"index_topk": 128, "index_head_dim": 32},
    "minimax_m3_vl_text": {"index_block_size": 32, "index_topk_blocks": 4, "index_head_dim": 32},
    "qwen4_exp_text": {"indexer_budget": 128, "indexer_head_dim": 32},
    "gemma3n_text": {"intermediate_size": [2 * WIDTH] * 2, "laurel_rank": 64},
}
SPARSE = spec.NativeSparseAttention(
    num_heads=16, num_kv_heads=1, head_dim=16, window=128, shared_keys=True,
    compression=spec.BlockCompression(block=32), selection=spec.BlockSelection(block=32, top_blocks=4),
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--processor-time", action="store_true", help="measure the processor time of one thread")
    parser.add_argument("--types", nargs="*", metavar="TYPE", help="names of rows (absent: all)")
    parser.add_argument("--write", nargs=2, metavar=("TYPE", "FOLDER"), help="only write the model of a row")
    chosen = parser.parse_args()
    if chosen.write:
        write(*chosen.write)
        return
    torch.set_num_threads(1 if chosen.processor_time else 2)
    clock = time.process_time if chosen.processor_time else time.perf_counter
    options = f"--length {chosen.length}" + " --processor-time" * chosen.processor_time
    print(heading(f"python -m benchmarks.selected_keys {options}", "transformers"))
    print(f"flash-linear-attention {fla_forms.installed()}\n")
    print("| type | training | peer | ratio | a token | peer | ratio |\n" + "|---" * 7 + "|")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")
    for kind in TYPES if chosen.types is None else chosen.types:
        cells = []
        for ours, theirs in measured(kind, chosen.length, clock):
            cells += [f"{1e3 * ours:.1f} ms", f"{1e3 * theirs:.1f} ms", f"{theirs / ours:.2f}"]
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)
    make = partial(fla_forms.form_of, SPARSE, WIDTH, BATCH, chosen.length, None) if fla_forms.installed() else None
    training, _, token = linear_recurrence.measured(SPARSE, make, WIDTH, BATCH, chosen.length, clock)
    (ours, theirs), cell = training, ["-", "-"]
    if theirs is not None:
        cell = [f"{1e3 * theirs:.1f} ms", f"{theirs / ours:.2f}"]
    print(f"| native sparse attention | {1e3 * ours:.1f} ms | {' | '.join(cell)} | {1e3 * token[0]:.1f} ms | - | - |")


def write(kind: str, folder: str) -> None:
    """Write a small model of a type with random weights."""
    from tests.helpers.zoo import TASKS, class_of, drawn, small_config

    config = small_config(kind)
    for name, value in (SIZES | TYPES[kind]).items():
        if hasattr(config, name):
            setattr(config, name, value)
    make, config = class_of(config, TASKS["causal"])
    drawn(make(config)).save_pretrained(folder)


def measured(kind: str, length: int, clock: Callable[[], float]) -> tuple[tuple[float, float], ...]:
    """Return median seconds of a training step and of one more token; ours and theirs."""
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "benchmarks.selected_keys", "--write", kind, folder)
        subprocess.run(command, check=True, capture_output=True)
        ours = archetype.load(Path(folder), dtype="float32").model
        (name,) = transformers.AutoConfig.from_pretrained(folder).architectures
        theirs = getattr(transformers, name).from_pretrained(folder)
    tokens = torch.randint(ours.spec.vocab_size, (BATCH, length))
    with torch.no_grad():
        before, after = theirs.eval()(tokens).logits, ours.eval()(tokens).logits
        # the same model; for a few tokens, scores are so close that rounding selects other keys
        assert (before - after).abs().amax(-1).quantile(0.9) < 1e-3 * before.abs().max(), kind
    programs = [(ours, our_decoding(ours, tokens)), (theirs, their_decoding(theirs, tokens))]
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in programs]
    for turn in range(ROUNDS + 1):
        for (model, decode), (training, decoding) in zip(programs, seconds, strict=True):
            model.train()
            trained = timed(clock, lambda model=model: model(tokens).logits.sum().backward())  # type: ignore[misc]
            model.eval()
            with torch.no_grad():
                decoded = timed(clock, decode) / STEPS
            if turn:  # the first warms up
                training.append(trained)
                decoding.append(decoded)
    (train, decode), (their_train, their_decode) = ([statistics.median(each) for each in one] for one in seconds)
    return (train, their_train), (decode, their_decode)


def our_decoding(model: Any, tokens: Tensor) -> Callable[[], None]:
    """Return the decoding of `STEPS` tokens after `tokens`."""
    state = model.new_state(BATCH, tokens.shape[1] + STEPS * (ROUNDS + 1))
    with torch.inference_mode():
        model(tokens, state=state)
    step = DecodeStep(model, state)

    def decode() -> None:
        for _ in range(STEPS):
            step(tokens[:, :1])

    return decode


def their_decoding(model: Any, tokens: Tensor) -> Callable[[], None]:
    """Return the same by transformers."""
    with torch.no_grad():
        cache = model(tokens, use_cache=True).past_key_values

    def decode() -> None:
        for _ in range(STEPS):
            model(tokens[:, :1], past_key_values=cache, use_cache=True)

    return decode


if __name__ == "__main__":
    main()
