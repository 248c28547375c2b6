"""Libraries of native kernels: that of this processor, those that others choose, and one that none would choose.

An installation builds that of its processor alone. Others are compiled when a test asks for them, with fewer
optimizations, which takes half the time: in every run the plainest and one that no processor has, the rest in the
soak, where test_compiler.py repeats their tests with the optimizations of a wheel.
"""

import fcntl
import platform
from functools import cache

import pytest

from archetype.io.cache import cache_folder
from archetype.native.compiler import FURTHER, built_file, variants
from archetype.native.library import Library, compiled, library, runnable

# Vectors as wide as those of AVX-512, in pieces: no kernel leans on the processor's own width.
PIECES = {"16 lanes": ("-march=x86-64", "-O1", "-DWIDTH=16")} if platform.machine() == "x86_64" else {}
FEWER = () if FURTHER else ("-O1",)
EVERY_RUN = [variant.name for variant in variants()[:1]] + [one.name for one in variants() if built_file(one).is_file()]
INSTRUCTIONS = [
    pytest.param(name, marks=() if FURTHER or name in [*EVERY_RUN, *PIECES] else pytest.mark.slow)
    for name in (*(variant.name for variant in variants()), *PIECES)
]


@cache
def kernels(name: str) -> Library:
    """The kernels for a set of instructions, or "native": those that this machine uses.

    A test is skipped where they cannot be compiled or run.
    """
    own = library()
    if own is None:
        pytest.skip("no C++ compiler")
    if name == "native":
        return own
    if name in PIECES:
        return _compiled(PIECES[name])
    variant = next((variant for variant in runnable() if variant.name == name), None)
    if variant is None:
        pytest.skip(f"this processor cannot run {name}")
    file = built_file(variant)
    return Library(file) if file.is_file() else _compiled((*variant.flags, *FEWER))


def _compiled(flags: tuple[str, ...]) -> Library:
    """Compile kernels, or wait until another worker has."""
    with (cache_folder() / "kernels-of-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return compiled(flags)
