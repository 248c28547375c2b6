"""Compile the kernels: one library for each instruction set.

    python archetype/native/compiler.py

builds the library for this processor if it is missing in `built/` or is outdated. This file imports only the
standard library, since the hook of a package build (hatch_build.py) loads it by its path.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
BUILT = FOLDER / "built"
COMPILERS = ("c++", "g++", "clang++")
# May be set to further flags for every library, such as sanitizers; the flags are part of the libraries' names.
VARIABLE = "ARCHETYPE_NATIVE_CXXFLAGS"
FURTHER = tuple(os.environ.get(VARIABLE, "").split())
STRIP = () if FURTHER or sys.platform == "darwin" else ("-s",)
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", *STRIP, *FURTHER)
NATIVE = "-march=native"


class Variant(NamedTuple):
    """An instruction set for which kernels are built."""

    name: str  # part of the library's file name
    flags: tuple[str, ...]  # compiler flags
    needs: frozenset[str]  # features that the processor must have, as in Linux's /proc/cpuinfo


_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_V4_VNNI = _V4 | {"avx512_vnni"}
_V4_BF16 = _V4_VNNI | {"avx512_bf16"}
_BF16_FLAGS = ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16")
# From the plainest to the newest: a processor gets the last variant that it can run.
_X86_64 = (
    Variant("x86-64-v2", ("-march=x86-64-v2",), _V2),
    Variant("x86-64-v3", ("-march=x86-64-v3",), _V3),
    Variant("x86-64-v3-vnni", ("-march=x86-64-v3", "-mavxvnni"), _V3 | {"avx_vnni"}),
    Variant("x86-64-v4", ("-march=x86-64-v4",), _V4),
    Variant("x86-64-v4-vnni", ("-march=x86-64-v4", "-mavx512vnni"), _V4_VNNI),
    Variant("x86-64-v4-bf16", _BF16_FLAGS, _V4_BF16),
    Variant("x86-64-v4-tiles", (*_BF16_FLAGS, "-mamx-tile", "-mamx-bf16"), _V4_BF16 | {"amx_tile", "amx_bf16"}),
)
_ARM64 = (
    Variant("arm64", ("-march=armv8-a",), frozenset({"asimd"})),
    Variant("arm64-bf16", ("-march=armv8.2-a+bf16",), frozenset({"asimd", "asimdhp", "bf16"})),
)
VARIANTS = {"x86_64": _X86_64, "AMD64": _X86_64, "aarch64": _ARM64, "arm64": _ARM64}


def variants() -> tuple[Variant, ...]:
    """Return the variants for this kind of machine; empty unless it is x86-64 or 64-bit Arm."""
    return VARIANTS.get(platform.machine(), ())


def sources() -> list[Path]:
    """Return the C++ files."""
    return sorted(file for file in FOLDER.iterdir() if file.suffix in (".h", ".cpp"))


@cache
def fingerprint() -> str:
    """Return a hash of all sources and flags, which is part of a library's name."""
    flags = [*FLAGS, *(flag for variant in variants() for flag in (variant.name, *variant.flags))]
    parts = (*(file.read_bytes() for file in sources()), *(flag.encode() for flag in flags))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def built_file(variant: Variant) -> Path:
    """Return the path of a variant's library for the current sources."""
    return BUILT / f"{variant.name}-{fingerprint()}.so"


def find_compiler() -> str:
    """Return the path of the C++ compiler: $CXX, or the first of `COMPILERS`.

    Raises:
        OSError: there is no compiler.
    """
    names = (os.environ.get("CXX", ""), *COMPILERS)
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        raise OSError("no C++ compiler (c++, g++ or clang++)")
    return compiler


def compile_library(flags: tuple[str, ...], file: Path) -> None:
    """Compile the kernels into a library, which appears under its name only when complete.

    Raises:
        OSError: there is no compiler, or the folder cannot be written to.
        subprocess.SubprocessError: the compiler fails.
    """
    compiler = find_compiler()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as temporary:
        output = Path(temporary) / file.name
        command = [compiler, *FLAGS, *flags, str(FOLDER / "kernels.cpp"), "-o", str(output)]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        output.replace(file)  # another process never sees half a file


def build(features: frozenset[str] | None = None) -> list[Path]:
    """Build the missing libraries for this kind of machine, and remove outdated ones.

    Args:
        features: of the processor that will run the kernels: only the newest variant that it can run and the compiler
            knows is built. None: all variants, in parallel on all cores, for a package that suits every processor.

    Returns:
        The libraries of the current sources that are wanted.

    Raises:
        OSError: there is no compiler, or the folder cannot be written to.
        subprocess.SubprocessError: the compiler fails for all variants.
    """
    find_compiler()
    current = {built_file(variant): variant for variant in variants()}
    failures: list[subprocess.SubprocessError] = []

    def is_built(file: Path) -> bool:
        try:
            if not file.is_file():
                compile_library(current[file].flags, file)
        except subprocess.SubprocessError as error:  # an older compiler does not know the newest instructions
            failures.append(error)
        return file.is_file()

    files = [file for file, variant in current.items() if features is None or variant.needs <= features]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = compress(files, pool.map(is_built, files)) if features is None else filter(is_built, reversed(files))
        built = list(islice(done, None if features is None else 1))
    if failures and not built:
        raise failures[0]
    for file in set(BUILT.glob("*.so")) - current.keys():
        with contextlib.suppress(FileNotFoundError):  # another build may have removed it
            file.unlink()
    return built


def reason(error: OSError | subprocess.SubprocessError) -> str:
    """Return the cause of a failed compilation in one line."""
    return str(getattr(error, "stderr", None) or error).strip().splitlines()[-1][:200]


if __name__ == "__main__":
    from archetype.machine.cpu_info import cpu_features

    try:
        build(cpu_features())
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"no native kernels, so this processor computes more slowly: {reason(error)}")
