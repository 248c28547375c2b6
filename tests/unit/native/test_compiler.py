"""Kernels are compiled once, found again, and left out in words where they cannot be compiled."""

import logging
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from archetype.native import compiler
from archetype.native.compiler import VARIABLE, compiled, library
from tests.helpers.kernels import kernels


@pytest.fixture(autouse=True)
def fresh_choice() -> None:
    library.cache_clear()


def test_kernels_are_found_again_without_a_compiler_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels("native")
    file = compiled((compiler.MACHINE,))
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(compiler.tempfile, "TemporaryDirectory", None)  # what a compilation begins with
    assert compiled((compiler.MACHINE,)).stat().st_mtime_ns == before


def test_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert library() is None and not caplog.records


def test_without_a_compiler_one_line_is_logged_and_the_plain_path_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho error: no such thing >&2; exit 1\n")
    broken.chmod(0o755)
    caplog.set_level(logging.WARNING, "archetype.native")
    for path, cause in ((tmp_path / "empty", "no C++ compiler"), (tmp_path, "error: no such thing")):
        library.cache_clear()
        caplog.clear()
        monkeypatch.setenv("PATH", str(path))
        monkeypatch.delenv("CXX", raising=False)
        assert library() is None and library() is None
        assert [cause in record.message for record in caplog.records] == [True]


def test_kernels_are_valid_for_processors_that_are_not_here() -> None:
    """What only they can run is at least compiled: AVX-512 with and without integer and bfloat16 instructions."""
    compiler_path = shutil.which("g++")
    if compiler_path is None or platform.machine() != "x86_64":
        pytest.skip("no g++ for x86-64")
    source = str(Path(compiler.__file__).parent / "kernels.cpp")
    for machine in ("skylake-avx512", "sapphirerapids"):
        command = [
            compiler_path,
            *compiler.FLAGS,
            f"-march={machine}",
            "-fsyntax-only",
            "-fopenmp",
            "-Wall",
            "-Wextra",
            "-Werror",
            source,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (machine, done.stderr[:500])


@pytest.fixture(autouse=True, scope="module")
def own_choice_afterwards() -> object:
    yield
    library.cache_clear()
