"""What an installed package must do by itself, outside the checkout: `python tests/installed.py`.

For the runs that build wheels: kernels are opened without compiling, and every command of the first minute works.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = "from archetype.native.library import library, runnable; print(runnable()[-1].name, library().lanes)"
COMMANDS = (
    "demo --minutes 0.1 --to run",
    "generate run Return --max-new-tokens 8",
    "bench decode llama-tiny --new 4 --prompt 4 --repeat 1",
)


def main() -> None:
    """Run them in an empty home, with nothing on the path but this Python."""
    with tempfile.TemporaryDirectory() as home:
        settings = {"HOME": home, "PATH": str(Path(sys.executable).parent), "XDG_CACHE_HOME": f"{home}/cache"}
        settings |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}
        for command in (["-c", KERNELS], *(["-m", "archetype", *words.split()] for words in COMMANDS)):
            print("$", *command, flush=True)
            subprocess.run([sys.executable, *command], cwd=home, env=settings, check=True, timeout=600)
        compiled = list(Path(home, "cache").glob("archetype/*.so"))
        assert not compiled, "kernels were compiled, not found"


if __name__ == "__main__":
    main()
