"""The native tests once more, by kernels that AddressSanitizer and UndefinedBehaviorSanitizer watch.

They run in a process of their own, since the sanitizers' libraries have to be loaded first, and every tensor's memory
then has guarded ends. Loads of a part of a vector by AVX-512's masks are not watched; the plainer instructions, which
run here too, have none.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archetype.native import compiler
from tests.helpers.kernels import kernels

ROOT = Path(__file__).parents[3]
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
# products of every kind of weights, attention with its gradients, norms, recorded steps, wrong indices; odd sizes
TESTS = (
    "tests/unit/native/test_kernels.py",
    "tests/unit/native/test_fused.py",
    "tests/unit/native/test_rows.py",
    "tests/unit/native/test_recorder.py",
    "tests/unit/native/test_cache_attention.py",
    "tests/unit/native/test_wrong_indices.py",
    "tests/unit/weights/test_lossless.py",
    "tests/unit/weights/test_quantized.py",
    "tests/invariants/test_recorded_steps.py",
)
GATHER = """
import torch
from archetype.native.library import library
from archetype.native.operations import Gather
from archetype.native.recorder import Recorder
index, y = torch.zeros(2, 1, dtype=torch.long), torch.empty(2, 1)
recorder = Recorder(library(), [index])
recorder.emit(Gather(y=y, x={x}, index=index, rows=2, columns=1, features=64))
recorder.finish([y])(1)
print("done")
"""


class Child:
    """Starts Python with the sanitizers.

    Args:
        folder: for the kernels that are compiled.
    """

    def __init__(self, folder: Path) -> None:
        kernels("native")  # skips where there is no compiler
        cxx = compiler.find_compiler()
        names = ("libasan.so", "libubsan.so")
        libraries = [subprocess.check_output([cxx, f"-print-file-name={name}"], text=True).strip() for name in names]
        if not all(Path(file).is_absolute() for file in libraries):
            pytest.skip("needs g++ with libasan and libubsan")
        unwatched = folder / "c++"  # the compiler is not to be watched itself
        unwatched.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec "{shutil.which(cxx)}" "$@"\n')
        unwatched.chmod(0o755)
        self.settings = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ARCHETYPE"))
        }
        self.settings |= {
            "CXX": str(unwatched),
            "XDG_CACHE_HOME": str(folder),
            "LD_PRELOAD": " ".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONPATH": str(ROOT),
            compiler.VARIABLE: FLAGS,
        }

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run Python to its end."""
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=self.settings, cwd=ROOT, capture_output=True, text=True, timeout=3500)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    return Child(tmp_path_factory.mktemp("sanitized"))


@pytest.mark.slow
def test_kernels_touch_no_memory_but_their_own(child: Child) -> None:
    done = child.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.slow
def test_the_sanitizers_watch(child: Child) -> None:
    for x, finding in (
        ("torch.randn(2, 64)", ""),
        ("torch.randn(1, 64)", "heap-buffer-overflow"),
        ("torch.frombuffer(bytearray(600), dtype=torch.float32, count=128, offset=1)", "misaligned address"),
    ):
        done = child.run("-c", GATHER.format(x=x))
        assert (done.returncode == 0) == (finding == "") and finding in done.stderr, done.stderr[-2000:]
