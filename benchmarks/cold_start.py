"""A whole process from its start to the first token of a text: `archetype generate` against transformers, in turns.

    python -m benchmarks.cold_start [FOLDER] [--rounds 5]

FOLDER holds a model as transformers writes it, with its tokenizer.json. Without one, a model of the 110M shape is
written with random weights, and a tokenizer trained on the Python library's own text. The libraries' files are in the
page cache after the first round, which does not count, and their bytecode is in a folder of the benchmark, as that of
installed packages is beside them. CPU seconds are those of all threads.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from archetype.api.functions import export
from archetype.api.language_model import LanguageModel
from archetype.data.library_text import library_text
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from benchmarks.machine import heading
from benchmarks.shapes import shape

PROMPT = "Once upon a time"
PEER = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer, model = (kind.from_pretrained(sys.argv[1]) for kind in (AutoTokenizer, AutoModelForCausalLM))
tokens = model.generate(**tokenizer(sys.argv[2], return_tensors="pt"), max_new_tokens=1, do_sample=False)
print(tokenizer.decode(tokens[0]))
"""


def main() -> None:
    """Print the seconds of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = chosen.folder or write_model(Path(temporary) / "110M")
        print(heading(f"python -m benchmarks.cold_start {chosen.folder.name if chosen.folder else ''}", "transformers"))
        compare(folder, chosen.rounds, Path(temporary) / "bytecode")


def write_model(folder: Path) -> Path:
    """Write the 110M shape with random weights and a tokenizer."""
    spec = shape("110M")
    tokenizer = train_tokenizer("byte_bpe", library_text()[: 2**20], 8000)
    export(LanguageModel(spec, build(spec), tokenizer), folder)
    return folder


def compare(folder: Path, rounds: int, bytecode: Path) -> None:
    """Print the medians of both sides, which take turns."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    ours = ["-m", "archetype", "generate", str(folder), PROMPT, "--max-new-tokens", "1", "--temperature", "0"]
    sides = {"archetype": ours, "transformers": ["-c", PEER, str(folder), PROMPT]}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, arguments in sides.items():
            started, before = time.perf_counter(), _processor_seconds()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
            times[name].append((time.perf_counter() - started, _processor_seconds() - before))
    medians = {
        name: [statistics.median(column) for column in zip(*rows[1:], strict=True)] for name, rows in times.items()
    }
    for name, (wall, processor) in medians.items():
        print(f"{name:<14}{wall:6.2f} s  {processor:6.2f} s of the processor")
    ratios = (ours / theirs for ours, theirs in zip(*medians.values(), strict=True))
    print("ratio         " + "    ".join(f"{ratio:6.2f}" for ratio in ratios))


def _processor_seconds() -> float:
    """Of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
