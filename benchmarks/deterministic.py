"""What `--deterministic` costs: tokens a second of the same requests to an engine with and without it, by turns.

    python -m benchmarks.deterministic --shape 110M --rows 1 8

The model is one of `benchmarks.shapes`, or of its other architectures (`--shape Mamba`), with random weights. Prefill
is the time until every row has its first token, decoding that of all further ones.
"""

import argparse
import statistics
import time
from itertools import product

import torch

from archetype.api.language_model import LanguageModel
from archetype.generate import Engine
from archetype.models.build import build
from archetype.weights.packing import TYPES
from benchmarks.machine import heading
from benchmarks.shapes import ARCHITECTURES, shape

FORMATS = ("float32", "bfloat16", "int8", "int4", "lossless")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="110M")
    parser.add_argument("--weights", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=128, help="tokens that each row reads")
    parser.add_argument("--new", type=int, default=32, help="tokens that each row writes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    options = f"--shape {chosen.shape} --prompt {chosen.prompt} --new {chosen.new} --threads {chosen.threads}"
    print(heading(f"python -m benchmarks.deterministic {options} --rounds {chosen.rounds}"))
    print("| weights | rows | prefill tokens/s | deterministic | ratio | decoding tokens/s | deterministic | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for format, rows in product(chosen.weights, chosen.rows):
        print(f"| {format} | {rows} | {' | '.join(measured(chosen, format, rows))} |", flush=True)


def measured(chosen: argparse.Namespace, format: str, rows: int) -> list[str]:
    """Medians and their ratios, of prefill and of decoding."""
    engines = [engine(chosen, format, rows, deterministic) for deterministic in (False, True)]
    drawn = torch.Generator().manual_seed(0)
    prompts = torch.randint(1000, (rows, chosen.prompt), generator=drawn).tolist()
    times: list[list[tuple[float, float]]] = [[], []]
    for turn in range(chosen.rounds + 1):
        for one, taken in zip(engines, times, strict=True):
            first, further = run(one, prompts, chosen.new)
            if turn:  # the first warms up
                taken.append((rows * chosen.prompt / first, rows * (chosen.new - 1) / further))
    cells = []
    for rates in zip(*([[*map(statistics.median, zip(*taken, strict=True))] for taken in times]), strict=True):
        plain, deterministic = rates
        cells += [f"{plain:,.0f}", f"{deterministic:,.0f}", f"{deterministic / plain:.2f}"]
    return cells


def engine(chosen: argparse.Namespace, format: str, rows: int, deterministic: bool) -> Engine:
    """An engine that reads all prompts before the first step."""
    dtype = torch.float32 if format == "float32" else torch.bfloat16
    own = ARCHITECTURES[chosen.shape]() if chosen.shape in ARCHITECTURES else shape(chosen.shape)
    model = build(own, dtype=dtype).eval()
    lm = LanguageModel(model.spec, model)
    if format in TYPES:
        lm.pack(format)
    if deterministic:
        lm.make_deterministic()
    return Engine(lm, slots=rows, prefix_bytes=0, prefill_tokens=rows * chosen.prompt)


def run(engine: Engine, prompts: list[list[int]], new: int) -> tuple[float, float]:
    """Seconds until every row has its first token, and those of all further ones."""
    started = time.perf_counter()
    requests = [engine.submit(prompt, temperature=0.0, max_new_tokens=new, ignore_eos=True) for prompt in prompts]
    begun = {}
    for event in engine.events():
        begun.setdefault(event.request, time.perf_counter() - started)
    assert all(len(request.tokens) == new for request in requests)
    first = max(begun.values())
    return first, time.perf_counter() - started - first


if __name__ == "__main__":
    main()
