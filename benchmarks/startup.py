"""How long the verbs that need no tensor take, as whole processes, beside an interpreter that does nothing.

python -m benchmarks.startup
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.machine import heading, median_seconds

COMMANDS = ("--help", "--version", "list", "cost llama-2-7b", "cost llama-3.1-405b", "show gpt2", "train --help")
RUNS = 11


def main() -> None:
    """Print the table."""
    program = str(Path(sys.executable).with_name("archetype"))
    print(heading("python -m benchmarks.startup", "typer", "pydantic"))
    python = _seconds([sys.executable, "-c", "pass"])
    print(f"{'':<32}{'seconds':>10}{'ratio':>8}")
    print(f"{'python -c pass':<32}{python:10.3f}{1:8.1f}")
    for command in COMMANDS:
        seconds = _seconds([program, *command.split()])
        print(f"{'archetype ' + command:<32}{seconds:10.3f}{seconds / python:8.1f}")


def _seconds(command: list[str]) -> float:
    return median_seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), runs=RUNS)


if __name__ == "__main__":
    main()
