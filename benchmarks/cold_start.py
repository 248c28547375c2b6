"""A whole process from its start to the first token of a text: `archetype generate` against transformers, in turns.

    python -m benchmarks.cold_start FOLDER

FOLDER holds a model as transformers writes it, with its tokenizer.json; the libraries' files are in the page cache
after the first round, which does not count.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.machine import heading

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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print(heading(f"python -m benchmarks.cold_start {chosen.folder.name}", "transformers"))
    ours = ["-m", "archetype", "generate", str(chosen.folder), PROMPT, "--max-new-tokens", "1", "--temperature", "0"]
    sides = {"archetype": ours, "transformers": ["-c", PEER, str(chosen.folder), PROMPT]}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(chosen.rounds + 1):
        for name, arguments in sides.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    for name, seconds in medians.items():
        print(f"{name:<14}{seconds:6.2f} s")
    print(f"ratio {medians['archetype'] / medians['transformers']:.2f}")


if __name__ == "__main__":
    main()
