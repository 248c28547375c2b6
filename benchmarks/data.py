"""Text of any size: tokenised once by all cores, read by a training run; memory, speed, and how long a step waits.

python -m benchmarks.data --gigabytes 10 --folder /tmp/text
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from archetype.data.library_text import library_text
from benchmarks.machine import heading

BLOCK = 2**24  # bytes that are written at once


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, required=True, help="for the text, the tokens and the runs; it is left")
    parser.add_argument("--spec", default="llama-tiny")
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    file = chosen.folder / "text.txt"
    write_text(file, round(chosen.gigabytes * 1e9))
    print(heading(f"python -m benchmarks.data --gigabytes {chosen.gigabytes:g}"))
    print(f"{chosen.spec}, {file.stat().st_size / 1e9:.2f} GB of text, {chosen.steps} steps of 16 rows")
    print("| run | seconds | most resident, all processes (MB) | share of a step's time that waits for data |")
    print("|---|--:|--:|--:|")
    for name in ("tokenises", "finds tokens"):
        seconds, resident, waited = trained(chosen.folder, name.replace(" ", "-"), chosen.spec, chosen.steps)
        print(f"| {name} | {seconds:.0f} | {resident / 1e6:,.0f} | {waited:.2%} |")


def write_text(file: Path, size: int) -> None:
    """Lines of English in an order of their own for every block."""
    if file.exists() and file.stat().st_size >= size:
        return
    text = library_text()
    lines = np.array((text * (BLOCK // len(text) + 1))[:BLOCK].split("\n"), dtype=object)
    generator = np.random.default_rng(0)
    with file.open("w", encoding="utf-8") as opened:
        while opened.tell() < size:
            opened.write("\n".join(generator.permutation(lines)) + "\n")


def trained(folder: Path, name: str, spec: str, steps: int) -> tuple[float, int, float]:
    """Seconds of a run, the most bytes that it and its processes had resident, and the share of time without data."""
    to = folder / f"{name}-{os.getpid()}"
    options = {
        "--spec": spec, "--text": folder / "text.txt", "--to": to, "--steps": steps, "--tokenizer": "byte_bpe",
        "--vocab-size": 4096, "--batch-size": 16, "--device": "cpu",
    }  # fmt: skip
    edits = ["--set", "data.kind=documents", "--set", "spec.vocab_size=4096"]
    words = [str(word) for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "archetype", "train", *words, *edits]
    started, most = time.monotonic(), 0
    environment = os.environ | {"ARCHETYPE_CACHE": str(folder / f"cache-{os.getpid()}")}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
        while process.poll() is None:
            most = max(most, resident_bytes(process.pid))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit((folder / f"{name}.log").read_text())
    metrics = (to / "metrics.jsonl").read_text().splitlines()
    measured = [line for line in map(json.loads, metrics) if "data_seconds" in line]
    waited = sum(line["data_seconds"] for line in measured)
    return time.monotonic() - started, most, waited / sum(line["num_targets"] / line["per_second"] for line in measured)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and of those that it has started; pages that they share are counted once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0
    share = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return share + sum(resident_bytes(int(child)) for child in children)


if __name__ == "__main__":
    main()
