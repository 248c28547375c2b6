"""Load the native kernels: a library built with the package, or compiled on this machine."""

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

# May be set to "off", to the name of a variant, or to compiler flags such as -march=native.
VARIABLE = "ARCHETYPE_NATIVE"
# docs/log/kernels.md, "Without native kernels"
SLOWER = "a token takes about 1.3 times as long to decode in float32 and 3 times in bfloat16"
COMPILING = "compiling kernels for this processor, once"


class Library:
    """The compiled kernels.

    Raises:
        OSError: the library cannot be opened, or describes other structs than `operations`.

    Attributes:
        lanes: 32-bit lanes of a vector; quantized weights are packed in blocks of this many rows.
        has_tiles: whether bfloat16 products use the processor's matrix tiles (AMX).
        has_attention_forward: whether the library computes attention in bfloat16 faster than torch.
        differentiates_attention: whether the library computes the gradients of attention in bfloat16.
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
        """Compute entries in order, without holding Python's GIL.

        Raises:
            ValueError: an entry is invalid; nothing was computed.
            IndexError: an index in a tensor is out of range; the results of its entry and of later ones are incomplete.
        """
        wrong = (ctypes.c_int64 * 2)()  # the index, and the size that it exceeds
        failed = self._library.run(ctypes.addressof(entries), count, threads, ctypes.addressof(wrong))
        if not failed:
            return
        # 1 + index of an invalid entry, or -1 - index of an entry that met a wrong index
        entry = Entry.from_address(ctypes.addressof(entries) + (abs(failed) - 1) * ctypes.sizeof(Entry))
        if failed > 0:
            raise ValueError(self._fault(entry))
        name = OPERATIONS[entry.operation].operation
        raise IndexError(f"{name}: index {wrong[0]} is out of range for size {wrong[1]}")

    def _fault(self, entry: Entry) -> str:
        fault = self._library.fault(ctypes.byref(entry))
        if fault == -1:
            return f"there is no operation {entry.operation}"
        operation = OPERATIONS[entry.operation]
        # fault_of in arguments.h: 1 + index of a field, or one more if the fields do not fit together; -2: no arguments
        names = ["arguments", *operation.kinds, "combination of fields"]
        return f"{operation.operation}: {names[max(fault, 0)]}: missing, negative or invalid"


def _check(library: ctypes.CDLL, name: str) -> None:
    try:
        library.description.restype = ctypes.c_char_p
        theirs = library.description().decode().splitlines()
    except AttributeError as error:
        raise OSError(f"{name} has no table of operations; is it an older version?") from error
    for their, our in zip_longest(theirs, description(), fillvalue="nothing"):
        for part, other in zip_longest(their.split(", "), our.split(", "), fillvalue="no more"):
            if part != other:
                subject = re.split("[,:]", our)[0]
                raise OSError(f"{name} was built from different sources: {subject} has {part}; Python expects {other}")


@cache
def library() -> Library | None:
    """Return the kernels of this machine; None if disabled, or if they cannot be loaded (logged once)."""
    choice = os.environ.get(VARIABLE, "").strip()
    if choice == "off":
        return None
    try:
        return _open(choice)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("no native kernels, so %s: %s", SLOWER, reason(error))
        return None


def _open(choice: str) -> Library:
    if not choice.startswith("-"):
        suitable = runnable() if not choice else [variant for variant in variants() if variant.name == choice]
        if choice and not suitable:
            names = ", ".join(variant.name for variant in variants())
            raise OSError(f"{VARIABLE}: {choice!r} is not one of {names}, off, or compiler flags")
        for variant in reversed(suitable):  # the newest instructions first
            if (file := built_file(variant)).is_file():
                return Library(file)
        if choice:
            return compiled(suitable[0].flags)
    return compiled(tuple(choice.split()) or (NATIVE,))


def runnable() -> list[Variant]:
    """Return the variants that this processor can run, from the most basic to the newest."""
    return [variant for variant in variants() if variant.needs <= cpu_features()]


def compiled(flags: tuple[str, ...]) -> Library:
    """Return the kernels compiled with these flags, from the cache or compiled now (announced in a terminal).

    Raises:
        OSError: there is no compiler.
        subprocess.SubprocessError: the compiler fails.
    """
    version = subprocess.run(
        [find_compiler(), "--version"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    # The processor is part of the name, since -march=native depends on it.
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
    """Return the addresses of functions of torch's OpenMP runtime, so that there is only one pool of threads."""
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    try:
        # Symbols of this library's dependencies are found as well; libgomp, libomp and libiomp5 all have these names.
        runtime = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu{suffix}"))
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        addresses = [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value for name in names]
    except (OSError, AttributeError):
        log.warning("torch has no OpenMP runtime here, so native kernels use one thread")
        return None
    first, second, third = (address or 0 for address in addresses)
    return first, second, third
