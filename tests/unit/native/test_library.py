"""The kernels that a process opens: built ones where there are such, compiled ones else, and none in words."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from archetype.errors import Notice
from archetype.io import cache
from archetype.native import arguments, compiler
from archetype.native import library as native_library
from archetype.native.compiler import built_file, variants
from archetype.native.library import COMPILING, VARIABLE, Library, compiled, library, runnable
from tests.helpers.kernels import kernels

PLAIN = ("-O0",)  # compiles soonest


@pytest.fixture(autouse=True)
def fresh_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """No library was opened, and the cache is empty."""
    kernels("native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    library.cache_clear()
    yield
    monkeypatch.undo()
    library.cache_clear()


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a source tree, with flags that compile soon."""
    monkeypatch.setattr(compiler, "BUILT", tmp_path / "built")
    monkeypatch.setattr(native_library, "NATIVE", PLAIN[0])


@pytest.fixture(scope="module")
def plain_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of the sources as they are, for the tests that ask what becomes of it: built, or else compiled once."""
    kernels("native")  # skips where there is no compiler
    if runnable() and (built := built_file(runnable()[-1])).is_file():
        return built
    file = tmp_path_factory.mktemp("plain") / "kernels.so"
    compiler.compile_library(PLAIN, file)
    return file


@pytest.fixture(scope="module")
def variant_kernels() -> dict[tuple[str, ...], Library]:
    """The library of each variant that this processor can run, by its flags."""
    return {variant.flags: kernels(variant.name) for variant in runnable()}


@pytest.fixture
def compiled_before(plain_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of another compilation the library is copied to where it is to be written."""

    def copy(flags: tuple[str, ...], file: Path) -> None:
        assert flags == PLAIN
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(plain_kernels, file)

    monkeypatch.setattr(native_library, "compile_library", copy)


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("", None),
        ("sse4_2 ssse3", None),
        ("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3", "x86-64-v2"),
        ("cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe avx512f", "x86-64-v3"),
    ],
)
def test_a_processor_gets_the_newest_instructions_that_it_has(
    features: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "cpu_features", lambda: frozenset(features.split()))
    monkeypatch.setattr(native_library, "variants", lambda: compiler.VARIANTS["x86_64"])
    assert (runnable()[-1].name if runnable() else None) == expected


def test_built_kernels_need_no_compiler_no_cache_and_no_home(tmp_path: Path) -> None:
    """Nothing is written or said: the cache would be inside a file, there is no PATH, no terminal, and plain ASCII."""
    if not built_file(runnable()[-1]).is_file():
        pytest.skip("no C++ compiler")
    code = "from archetype.native.library import library; print(library() is not None)"
    settings = {"PATH": str(tmp_path), "HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "LANG": "C", "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_kernels_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert library() is None and not caplog.records


def test_a_variant_can_be_asked_for_by_name(
    variant_kernels: dict[tuple[str, ...], Library], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native_library, "compiled", lambda flags: variant_kernels[flags])  # of those that are not built
    for variant in runnable():
        library.cache_clear()
        monkeypatch.setenv(VARIABLE, variant.name)
        opened = library()
        assert opened is not None and opened.lanes == variant_kernels[variant.flags].lanes
    library.cache_clear()
    monkeypatch.setenv(VARIABLE, "x86-64-v9")
    assert library() is None and "'x86-64-v9' is not one of " + variants()[0].name in caplog.text


def test_a_source_tree_compiles_once_and_says_so_on_a_terminal(
    not_built: None,
    compiled_before: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert library() is not None
    assert capsys.readouterr().err == f"archetype: {COMPILING}\n"
    (file,) = (tmp_path / "cache" / "archetype").iterdir()
    library.cache_clear()
    monkeypatch.setattr(native_library, "compile_library", None)
    assert library() is not None and capsys.readouterr().err == ""
    assert [*file.parent.iterdir()] == [file]


def test_a_cache_that_cannot_be_written_is_not_needed(
    not_built: None, compiled_before: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The kernels are kept among the temporary files."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache._writable.cache_clear()
    caplog.set_level(logging.WARNING, "archetype.native")
    with pytest.warns(Notice, match="caches go to "):
        assert library() is not None and not caplog.records
    assert len([*tmp_path.glob("archetype-*/kernels-*.so")]) == 1


def test_without_a_compiler_one_line_is_logged_and_the_plain_path_stays(
    not_built: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
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


def test_a_library_of_other_fields_or_names_is_not_used(
    not_built: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for file in compiler.sources():
        shutil.copy(file, tmp_path)
    header = tmp_path / "fused.h"
    header.write_text(header.read_text().replace("*gate, *up;", "*up, *gate;").replace("SILU, GELU_TANH", "SILU, GELU"))
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    assert library() is None
    assert "Gate has GELU; Python expects GELU_TANH" in caplog.text
    monkeypatch.setitem(arguments.LISTS, "Gate", ("silu", "gelu"))
    library.cache_clear()
    assert library() is None
    assert "gated has gate: read at 16; Python expects gate: read at 8" in caplog.text
    file = tmp_path / "older.so"
    subprocess.run([compiler.find_compiler(), "-shared", "-x", "c", os.devnull, "-o", file], check=True)
    with pytest.raises(OSError, match=r"older\.so has no table of operations"):
        Library(file)


def test_threads_are_those_of_torch(compiled_before: None) -> None:
    """One pool: the functions belong to a library that torch has loaded already."""
    functions = native_library._openmp()
    assert functions is not None and all(functions)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc/self/maps, which says what is loaded")
    before = {line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line}
    compiled(PLAIN)
    assert {line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line} == before
