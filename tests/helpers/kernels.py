"""Libraries of native kernels: those that are built with the package, and one that no processor would choose."""

import platform
from functools import cache

import pytest

from archetype.native.compiler import built_file, variants
from archetype.native.library import Library, compiled, library, runnable

# Vectors as wide as those of AVX-512, in pieces: no kernel leans on the processor's own width.
PIECES = {"16 lanes": ("-march=x86-64", "-O1", "-DWIDTH=16")} if platform.machine() == "x86_64" else {}
INSTRUCTIONS = (*(variant.name for variant in variants()), *PIECES)


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
        return compiled(PIECES[name])
    variant = next((variant for variant in runnable() if variant.name == name), None)
    if variant is None:
        pytest.skip(f"this processor cannot run {name}")
    file = built_file(variant)
    return Library(file) if file.is_file() else compiled(variant.flags)
