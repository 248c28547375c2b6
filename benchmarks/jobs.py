"""The quick jobs that `benchmarks.table` measures, and how each kind of job is timed. All units: less is better.

Each job runs in a process of its own, in a folder with the models of `write_models`. A job's imports are inside its
function, because the process may have the package of an older checkout, which lacks modules that other jobs need.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archetype.models.decoder.module import Decoder

MODELS = {"model-15M": "15M", "model-110M": "110M"}  # folders in a job's working directory, and their shapes
Values = dict[str, float]  # by unit


def least(work: Callable[[], object], clocks: dict[str, Callable[[], float]] | None = None) -> Values:
    """Return the least milliseconds of a call by each clock, over 3 to 200 calls in about a second."""
    clocks = clocks or {"ms": time.perf_counter}
    times: dict[str, list[float]] = {unit: [] for unit in clocks}
    started = time.perf_counter()
    for number in range(200):
        if number >= 3 and time.perf_counter() - started > 1:
            break
        before = [clock() for clock in clocks.values()]
        work()
        for (unit, clock), begin in zip(clocks.items(), before, strict=True):
            times[unit].append(clock() - begin)
    return {unit: 1e3 * min(seconds) for unit, seconds in times.items()}


def built(name: str, weights: str) -> "Decoder":
    """Build a shape or mixer of `benchmarks.shapes` with random weights."""
    import torch

    from archetype.models.build import build
    from archetype.models.decoder.module import Decoder
    from archetype.weights.packing import TYPES, pack_model
    from benchmarks.shapes import MIXERS, shape

    spec = MIXERS[name]() if name in MIXERS else shape(name)
    model = build(spec, dtype=torch.bfloat16 if weights in ("bfloat16", "lossless") else torch.float32).eval()
    assert isinstance(model, Decoder)
    if weights in TYPES:
        pack_model(model, weights)
    return model


def decode(name: str, weights: str, rows: int = 1, filled: int = 128) -> Values:
    """Time one decoding step with `filled` tokens in the cache."""
    import torch

    from archetype.generate.step import DecodeStep

    model = built(name, weights)
    step = DecodeStep(model, model.new_state(rows, filled + 64))
    tokens = torch.zeros(rows, 1, dtype=torch.long)

    def take() -> None:
        with torch.inference_mode():
            step.state.lengths.fill_(filled)
        step(tokens)

    return least(take)


def prompt(weights: str, length: int = 128) -> Values:
    """Time the pass over a prompt."""
    import torch

    from archetype.generate.step import prefill

    model, tokens = built("110M", weights), [[31 * position % 32_000 for position in range(length)]]
    with torch.inference_mode():
        return least(lambda: prefill(model, tokens, model.new_state(1, length + 1)))


def train(name: str, rows: int = 2, length: int = 256) -> Values:
    """Time one step of a plain training loop in float32: forward, backward, clipping and AdamW."""
    import torch
    from torch.nn.functional import cross_entropy

    from archetype.models.build import build
    from benchmarks.shapes import TRAINED

    model = build(TRAINED[name]()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(3, 4000, (rows, length + 1), generator=torch.Generator().manual_seed(0))

    def take() -> None:
        cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return least(take)


def load(folder: str) -> Values:
    """Time loading a folder and a first pass over 8 tokens, and read the peak memory of the process after one load."""
    import torch

    import archetype

    def take() -> None:
        with torch.inference_mode():
            archetype.load(folder).model(torch.arange(1, 9)[None])

    take()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return least(take) | {"MiB": peak}


def build_on_meta(num_layers: int) -> Values:
    """Time building the modules of a deep model without storage."""
    from archetype.families.llama import llama
    from archetype.models.build import build
    from benchmarks.shapes import SHAPES

    spec = llama(**(SHAPES["110M"] | {"num_layers": num_layers}))  # type: ignore[arg-type]
    return least(lambda: build(spec, device="meta"))


def command(*arguments: str) -> Values:
    """Time a whole process of `archetype`, by the clock and by the processor."""

    def take() -> None:
        done = subprocess.run([sys.executable, "-m", "archetype", *arguments], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)

    return least(take, {"ms": time.perf_counter, "CPU ms": _processor_seconds})


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # processes that have ended
    return usage.ru_utime + usage.ru_stime


GENERATE = ("generate", "model-15M", "Once upon a time", "--max-new-tokens", "40", "--ignore-eos", "--temperature", "0")
JOBS: dict[str, partial[Values]] = {
    **{f"decode, {weights}": partial(decode, "110M", weights) for weights in ("float32", "bfloat16", "int8", "int4")},
    "decode, 16 sequences, float32": partial(decode, "110M", "float32", rows=16),
    **{
        f"decode, 4,096 cached, {mixer}": partial(decode, mixer, "bfloat16", filled=4096)
        for mixer in ("full", "GQA, 4 of 12", "MQA", "window of 256", "latent", "Mamba")
    },
    **{
        f"prompt of 128, {weights}": partial(prompt, weights)
        for weights in ("float32", "bfloat16", "int8", "int4", "lossless")
    },
    **{f"training step, {name}": partial(train, name) for name in ("llama", "mixtral", "deepseek_v2", "qwen3_next")},
    "load, 110M": partial(load, "model-110M"),
    "build 1,000 layers on meta": partial(build_on_meta, 1000),
    "archetype --help": partial(command, "--help"),
    "archetype cost llama-2-7b": partial(command, "cost", "llama-2-7b"),
    "archetype explain latent": partial(command, "explain", "latent"),
    "archetype generate, 40 tokens, 15M": partial(command, *GENERATE),
}


def write_models() -> None:
    """Write the models that jobs read into the working directory."""
    from archetype.api.functions import export
    from archetype.api.language_model import LanguageModel
    from archetype.models.build import build
    from archetype.tokenizers import train_tokenizer
    from benchmarks.shapes import shape

    for folder, name in MODELS.items():
        export(LanguageModel(shape(name), build(shape(name)), train_tokenizer("bytes", [], None)), folder)
