"""How long the verbs that need no tensor take, as whole processes.

python -m benchmarks.startup
"""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import heading, median_seconds

COMMANDS = (["--help"], ["list"], ["cost", "llama-2-7b"], ["cost", "llama-3.1-405b"])


def main() -> None:
    """Print the table."""
    program = str(Path(sys.executable).with_name("archetype"))
    assert shutil.which(program)
    print(heading("python -m benchmarks.startup", "typer", "pydantic"))
    python = median_seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), runs=11)
    print(f"{'python -c pass':<32}{python:6.3f} s")
    for arguments in COMMANDS:
        seconds = median_seconds(
            lambda arguments=arguments: subprocess.run(
                [program, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ),
            runs=11,
        )
        print(f"{'archetype ' + ' '.join(arguments):<32}{seconds:6.3f} s")


if __name__ == "__main__":
    main()
