"""The native kernels as an opened library: built with the package, or compiled here where that was not possible."""

import ctypes
import hashlib
import logging
import os
import re
import subprocess
import sys
from functools import cache
from itertools import zip_longest
from pathlib import Path

import torch

from archetype.io.cache import cache_folder
from archetype.machine.cpu_info import cpu_features, cpu_name
from archetype.native import operations  # noqa: F401  # whose structs a library has to have
from archetype.native.arguments import OPERATIONS, Entry, description
from archetype.native.compiler import (
    NATIVE,
    Variant,
    built_file,
    compile_library,
    find_compiler,
    fingerprint,
    reason,
    variants,
)

log = logging.getLogger("archetype.native")
log.addHandler(logging.NullHandler())

# What an installation may set: "off"; the name of a built variant; or flags by which the kernels are compiled for it,
# such as -march=native.
VARIABLE = "ARCHETYPE_NATIVE"
# docs/log/kernels.md, "Without native kernels"
SLOWER = "a token takes about 1.3 times as long to decode in float32 and 3 times in bfloat16"
COMPILING = "compiling kernels for this processor, once"


class Library:
    """The compiled kernels.

    Args:
        file: the library, whose operations are given what `arguments` says.

    Raises:
        OSError: it cannot be opened, or says something else.

    Attributes:
        lanes: 32-bit lanes of a vector; rows of quantized weights are packed in blocks of as many.
        has_tiles: whether products of bfloat16 are computed by the processor's matrix tiles.
        has_attention_forward: whether it has attention in bfloat16 that is faster than torch's.
        differentiates_attention: whether it has the gradients of attention in bfloat16.
    """

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        _check(self._library, file.name)
        self._library.run.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_void_p)
        self._library.run.restype = ctypes.c_long
        self.lanes: int = self._library.lanes()
        self.has_tiles = bool(self._library.has_tiles())
        self.has_attention_forward = bool(self._library.has_attention_forward())
        self.differentiates_attention = bool(self._library.differentiates_attention())
        if (functions := _openmp()) is not None:
            self._library.use_openmp.argtypes = (ctypes.c_void_p,) * len(functions)
            self._library.use_openmp(*functions)

    def run(self, entries: "ctypes.Array[Entry] | Entry", count: int, threads: int) -> None:
        """Compute entries one after the other; the interpreter's lock is free meanwhile.

        Raises:
            ValueError: one of them cannot be right, so that none was computed.
            IndexError: one met a row or place that is none, so that what it writes is not whole, nor what follows.
        """
        wrong = (ctypes.c_int64 * 2)()
        failed = self._library.run(ctypes.addressof(entries), count, threads, ctypes.addressof(wrong))
        if not failed:
            return
        entry = Entry.from_address(ctypes.addressof(entries) + (abs(failed) - 1) * ctypes.sizeof(Entry))
        if failed > 0:
            raise ValueError(self._fault(entry))
        name = OPERATIONS[entry.operation].operation
        raise IndexError(f"{name}: {wrong[0]} is none of the {wrong[1]} that there are")

    def _fault(self, entry: Entry) -> str:
        fault = self._library.fault(ctypes.byref(entry))
        if fault == -1:
            return f"there is no operation {entry.operation}"
        operation = OPERATIONS[entry.operation]
        names = ["its arguments", *operation.kinds, "what has to fit together"]
        return f"{operation.operation}: {names[max(fault, 0)]}: missing, negative, or of no known kind"


def _check(library: ctypes.CDLL, name: str) -> None:
    """Refuse a library that describes other operations than `arguments` does."""
    try:
        library.description.restype = ctypes.c_char_p
        theirs = library.description().decode().splitlines()
    except AttributeError as error:
        raise OSError(f"{name} does not say what its operations are given") from error
    for their, our in zip_longest(theirs, description(), fillvalue="nothing"):
        for part, other in zip_longest(their.split(", "), our.split(", "), fillvalue="no more"):
            if part != other:
                subject = re.split("[,:]", our)[0]
                raise OSError(f"{name} was built of other sources; of {subject} it has {part}, arguments.py {other}")


@cache
def library() -> Library | None:
    """The kernels of this machine; None where they are switched off or cannot be had, which is logged once."""
    choice = os.environ.get(VARIABLE, "").strip()
    if choice == "off":
        return None
    try:
        return _open(choice)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("no native kernels, so that %s: %s", SLOWER, reason(error))
        return None


def _open(choice: str) -> Library:
    if not choice.startswith("-"):
        suitable = runnable() if not choice else [variant for variant in variants() if variant.name == choice]
        if choice and not suitable:
            names = ", ".join(variant.name for variant in variants())
            raise OSError(f"{VARIABLE}: {choice!r} is not among {names}, nor off or a compiler's flags")
        for variant in reversed(suitable):
            if (file := built_file(variant)).is_file():
                return Library(file)
        if choice:
            return compiled(suitable[0].flags)
    return compiled(tuple(choice.split()) or (NATIVE,))


def runnable() -> list[Variant]:
    """The variants that this processor can run, the plainest first."""
    return [variant for variant in variants() if variant.needs <= cpu_features()]


def compiled(flags: tuple[str, ...]) -> Library:
    """The kernels compiled with these flags: from the cache, or now, which a terminal is told.

    Raises:
        OSError: there is no compiler.
        subprocess.SubprocessError: the compiler fails.
    """
    version = subprocess.run(
        [find_compiler(), "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    parts = (fingerprint(), *flags, version, *sorted(cpu_features()), cpu_name())
    file = cache_folder() / f"kernels-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    if file.is_file():
        return Library(file)
    log.info(COMPILING)
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"archetype: {COMPILING}", file=sys.stderr, flush=True)
    compile_library(flags, file)
    return Library(file)


def _openmp() -> tuple[int, int, int] | None:
    """Functions of the OpenMP runtime that torch brought along, so that there is one pool of threads.

    libgomp, libomp and libiomp5 all have them by these names.
    """
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    try:
        runtime = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu{suffix}"))  # and what it needs
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        addresses = [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value for name in names]
    except (OSError, AttributeError):
        log.warning("torch has no OpenMP here, so that kernels use one thread")
        return None
    first, second, third = (address or 0 for address in addresses)
    return first, second, third
