"""Kernels are built once for each set of instructions, and for processors that are not here."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archetype.native import compiler
from archetype.native.compiler import FLAGS, VARIANTS, Variant, build, built_file, fingerprint, variants
from tests.helpers.examples import every
from tests.helpers.kernels import kernels
from tests.unit.native.test_sanitized import ROOT, TESTS


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(compiler, "BUILT", tmp_path / "built")
    return compiler.BUILT


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The flags of each compilation, which writes an empty file instead."""
    flags_of_calls: list[tuple[str, ...]] = []

    def write(flags: tuple[str, ...], file: Path) -> None:
        flags_of_calls.append(flags)
        file.parent.mkdir(exist_ok=True)
        file.touch()

    monkeypatch.setattr(compiler, "compile_library", write)
    monkeypatch.setattr(compiler, "find_compiler", lambda: "g++")
    return flags_of_calls


def test_what_is_built_of_these_sources_is_not_built_again(built: Path, calls: list[tuple[str, ...]]) -> None:
    stale = built / "x86-64-v3-0123456789ab.so"
    built.mkdir()
    stale.touch()
    files = build()
    assert files == [built_file(variant) for variant in variants()] and len(calls) == len(files)
    assert set(built.iterdir()) == set(files) and not stale.exists()
    files[0].unlink()
    assert build() == files and calls[len(files) :] == [variants()[0].flags]


def test_for_one_processor_only_the_newest_that_it_can_run_is_built(built: Path, calls: list[tuple[str, ...]]) -> None:
    """What was built before for every processor stays."""
    build()
    everything = set(built.iterdir())
    for file in everything:
        file.unlink()
    for variant in variants():
        assert build(variant.needs) == [built_file(variant)] and calls[-1] == variant.flags
    count = len(calls)
    assert build(variants()[-1].needs) == [built_file(variants()[-1])] and len(calls) == count
    assert set(built.iterdir()) == everything
    assert build(frozenset({"none of them"})) == []


def test_an_older_compiler_builds_what_it_knows(
    built: Path, calls: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, write = variants()[-1], compiler.compile_library

    def refuse(flags: tuple[str, ...], file: Path) -> None:
        if flags == newest.flags:
            raise subprocess.CalledProcessError(1, "g++", stderr="error: unrecognized command-line option")
        write(flags, file)

    monkeypatch.setattr(compiler, "compile_library", refuse)
    assert build() == [built_file(variant) for variant in variants()[:-1]]
    assert build(newest.needs) == [built_file(variants()[-2])]
    monkeypatch.setattr(compiler, "compile_library", lambda flags, file: refuse(newest.flags, file))
    for file in built.iterdir():
        file.unlink()
    with pytest.raises(subprocess.CalledProcessError):
        build()


def test_the_fingerprint_follows_sources_and_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compute = fingerprint.__wrapped__
    before = compute()
    monkeypatch.setattr(compiler, "FLAGS", (*FLAGS, "-g"))
    assert compute() != before
    monkeypatch.undo()
    for file in compiler.sources():
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    assert compute() == before
    (tmp_path / "rows.h").write_text("// another\n")
    assert compute() != before


@pytest.mark.parametrize(
    ("machine", "program", "variant"),
    [
        pytest.param(machine, program, *one.values, id=one.values[0].name, marks=one.marks)
        for machine, program in (("x86_64", "g++"), ("aarch64", "aarch64-linux-gnu-g++"))
        for one in every(6, VARIANTS[machine])
    ],
)
def test_kernels_are_valid_for_processors_that_are_not_here(machine: str, program: str, variant: Variant) -> None:
    """What only they can run is at least compiled, without a warning: the plainest and the newest in every run."""
    path = shutil.which("g++" if platform.machine() == machine else program)
    if path is None or (program == "g++" and platform.machine() != machine):
        pytest.skip("no g++ for such a processor")
    checks = ("-fsyntax-only", "-Wall", "-Wextra", "-Werror")
    command = [path, *FLAGS, *variant.flags, *checks, str(compiler.FOLDER / "kernels.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:500]


@pytest.mark.slow
def test_other_processors_compute_the_same_with_the_kernels_of_a_wheel() -> None:
    """The soak asks this of kernels with fewer optimizations, too: tests/helpers/kernels.py."""
    kernels("native")  # skips where there is no compiler
    optimized = os.environ | {compiler.VARIABLE: "-O3"}
    command = [sys.executable, "-m", "pytest", "-n", "0", *TESTS]
    done = subprocess.run(command, env=optimized, cwd=ROOT, capture_output=True, text=True, timeout=3500)
    assert done.returncode == 0, done.stdout[-2000:]
