"""The native kernels as a library: compiled at first use by the machine's own compiler, then found in a cache."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from archetype.io.cpu_info import cpu_info

log = logging.getLogger("archetype.native")
log.addHandler(logging.NullHandler())

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared")
MACHINE = "-march=native"
# What an installation may set: "off", or the flags that choose instructions in place of -march=native.
VARIABLE = "ARCHETYPE_NATIVE"
POINTERS, INTEGERS, NUMBERS = 10, 56, 4


class Entry(ctypes.Structure):
    """One operation of a step, as work.h declares it."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("serial", ctypes.c_int32),
        ("barrier", ctypes.c_int32),
        ("pointers", ctypes.c_void_p * POINTERS),
        ("integers", ctypes.c_int64 * INTEGERS),
        ("numbers", ctypes.c_double * NUMBERS),
    )


class Library:
    """The compiled kernels.

    Attributes:
        lanes: 32-bit lanes of a vector; rows of quantized weights are packed in blocks of as many.
        has_tiles: whether products of bfloat16 are computed by the processor's matrix tiles.
        has_attention_forward: whether it has attention in bfloat16 that is faster than torch's.
        differentiates_attention: whether it has the gradients of attention in bfloat16.
    """

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        self._library.run.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
        self._library.run.restype = None
        self.lanes: int = self._library.lanes()
        self.has_tiles = bool(self._library.has_tiles())
        self.has_attention_forward = bool(self._library.has_attention_forward())
        self.differentiates_attention = bool(self._library.differentiates_attention())
        assert self._library.entry_bytes() == ctypes.sizeof(Entry)

    def run(self, entries: "ctypes.Array[Entry]", count: int, threads: int) -> None:
        """Compute entries one after the other; the interpreter's lock is free meanwhile."""
        self._library.run(ctypes.addressof(entries), count, threads)


@cache
def library() -> Library | None:
    """The kernels of this machine; None where they are switched off or cannot be compiled, which is logged once."""
    choice = os.environ.get(VARIABLE, "").strip()
    if choice == "off":
        return None
    try:
        return Library(compiled(tuple(choice.split()) or (MACHINE,)))
    except (OSError, subprocess.SubprocessError) as error:
        cause = getattr(error, "stderr", None) or error
        log.warning("no native kernels, so that decoding is slower: %s", str(cause).strip().splitlines()[-1][:200])
        return None


def compiled(flags: tuple[str, ...]) -> Path:
    """The library file for these flags, out of the cache or compiled now.

    Raises:
        OSError: there is no compiler, or no folder to write to.
        subprocess.SubprocessError: the compiler fails.
    """
    compiler = next(
        (path for name in (os.environ.get("CXX", ""), *COMPILERS) if name and (path := shutil.which(name))), None
    )
    if compiler is None:
        raise OSError("no C++ compiler (c++, g++ or clang++)")
    folder = Path(__file__).parent
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    sources = sorted(file for file in folder.iterdir() if file.suffix in (".h", ".cpp"))
    parts = (*(file.read_text() for file in sources), *FLAGS, *flags, version, instructions())
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    cached = cache_folder() / f"kernels-{name}.so"
    if not cached.is_file():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as temporary:
            output = Path(temporary) / cached.name
            command = [compiler, *FLAGS, *flags, str(folder / "kernels.cpp"), "-o", str(output)]
            try:
                subprocess.run([*command, "-fopenmp"], capture_output=True, text=True, check=True, timeout=300)
            except subprocess.CalledProcessError:  # Apple's compiler has no OpenMP: then one thread
                subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
            output.replace(cached)
    return cached


def cache_folder() -> Path:
    """Where compiled kernels stay."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archetype"


def instructions() -> str:
    """The sets of instructions that the processor has; where the system does not say them, its name."""
    return cpu_info("flags", "Features") or f"{platform.machine()} {platform.processor()}".strip()
