"""A copy of the checkout in which bugs are planted and tests run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutants.bug import ROOT, Bug, source
from tests.mutants.calls import VARIABLE

LOADED = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins that the process has imported before
KERNELS = (".cpp", ".h")


class Checkout:
    """The files that git knows, the kernels that are built, and a link to the shared data beside them.

    Args:
        folder: to make it in.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "checkout"
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        built = [str(file.relative_to(ROOT)) for file in (ROOT / "archetype/native/built").glob("*.so")]
        for name in [*filter(lambda name: (ROOT / name).is_file(), listed), *built]:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.path / name)
        if (ROOT.parent / "shared").is_dir():
            (folder / "shared").symlink_to((ROOT.parent / "shared").resolve())
        self._changes = 0
        variables = {
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE",
            "XDG_CACHE_HOME": str(folder / "cache"),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("preloaded.py")],
            cwd=folder, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """End the process that runs the tests."""
        self._process.communicate()

    def plant(self, bug: Bug) -> None:
        """Put a bug where it belongs; kernels are compiled with it when a test first asks for them."""
        self._write(bug.file, bug.planted())

    def repair(self, bug: Bug) -> None:
        """Take it out again."""
        self._write(bug.file, source(bug.file))

    def _write(self, file: str, text: str) -> None:
        """Write a file with a time of its own: by its second the bytecode of another text is told from this one's."""
        path = self.path / "archetype" / file
        path.write_text(text, encoding="utf-8")
        self._changes += 1
        os.utime(path, (path.stat().st_mtime + self._changes,) * 2)

    def run(self, tests: list[str], *options: str, timeout: float, record: Path | None = None) -> str | None:
        """Run tests one after the other.

        Args:
            tests: as pytest takes them.
            options: further ones of pytest.
            timeout: seconds after which they count as failed.
            record: where to write which functions each test calls.

        Returns:
            What failed; None where all pass.
        """
        arguments = [
            "-q",
            "-W",
            LOADED,
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.mutants.calls",
            "--tb=no",
            "-rfE",
            *options,
            *tests,
        ]
        variables = {"PYTHONPATH": os.pathsep.join([str(self.path), os.environ.get("PYTHONPATH", "")])}
        variables |= {VARIABLE: "" if record is None else str(record)}
        request = {"folder": str(self.path), "arguments": arguments, "environment": variables, "timeout": timeout}
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        failed = [line for line in answer["output"].splitlines() if line.startswith(("FAILED", "ERROR"))]
        if answer["code"] is None:
            return "a test that hangs"
        return None if answer["code"] == 0 else failed[0].split(" - ")[0] if failed else f"exit {answer['code']}"
