"""From a cold process to the first logits of a checkpoint with the shapes of Llama 3.2 1B, here and in transformers.

    python -m benchmarks.loading [DTYPE] [PRESET]

The weights are random, and in the page cache. Each run is a process of its own; both take turns. `peak` is
the largest resident memory, in which mapped pages of the file count.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import heading

RUNS = 5
OURS = """
import torch, archetype
lm = archetype.load(FOLDER)
with torch.inference_mode():
    print(lm.model(TOKENS).logits[0, -1].float().sum().item())
"""
THEIRS = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto")
with torch.inference_mode():
    print(model(TOKENS).logits[0, -1].float().sum().item())
"""


def make(preset: str, dtype: str, folder: Path) -> int:
    """Write the checkpoint; its size in bytes."""
    import torch

    from archetype.api.exporting import export
    from archetype.api.language_model import LanguageModel
    from archetype.families import preset as named
    from archetype.models.build import build

    model = build(named(preset), seed=0, dtype=getattr(torch, dtype))
    export(LanguageModel(model.spec, model), folder)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def once(program: str, folder: Path) -> tuple[float, float]:
    """Seconds of the whole process, and its peak of memory in bytes."""
    text = program.replace("FOLDER", repr(str(folder))).replace("TOKENS", "torch.arange(1, 9)[None]")
    child = (
        "import subprocess, sys, time, resource, json; s = time.perf_counter();"
        "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True, stdout=subprocess.DEVNULL);"
        "print(json.dumps([time.perf_counter() - s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))"
    )
    done = subprocess.run([sys.executable, "-c", child, text], check=True, capture_output=True, text=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def main() -> None:
    """Print the table."""
    dtype, preset = (*sys.argv[1:], *("float32", "llama-3.2-1b")[len(sys.argv) - 1 :])
    print(heading(f"python -m benchmarks.loading {dtype} {preset}", "transformers", "safetensors"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        size = make(preset, dtype, folder)
        print(f"{size / 2**30:.2f} GiB of weights")
        taken: dict[str, list[tuple[float, float]]] = {"archetype": [], "transformers": []}
        for _ in range(RUNS):
            for name, program in (("archetype", OURS), ("transformers", THEIRS)):
                taken[name].append(once(program, folder))
    for name, runs in taken.items():
        seconds, peaks = zip(*runs, strict=True)
        peak = statistics.median(peaks)
        print(f"{name:<14}{statistics.median(seconds):7.2f} s", end="   ")
        print(f"peak {peak / 2**30:5.2f} GiB = {peak / size:.3f} of the weights")
    ours, theirs = (statistics.median(seconds for seconds, _ in taken[name]) for name in taken)
    print(f"ratio {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
