"""Libraries of native kernels, for each set of instructions that this machine can run."""

import platform
from functools import cache

import pytest

from archetype.native.compiler import MACHINE, Library, compiled, instructions, library

# by name: the flags, and what the processor must have; the plainest shows that no kernel leans on wide vectors
INSTRUCTIONS = {
    "native": ((MACHINE,), ""),
    "avx2": (("-march=x86-64-v3", "-O1"), "avx2"),  # on a processor whose own vectors are wider
    "avx512": (("-march=x86-64-v4", "-O1"), "avx512bw"),  # without what later ones have
    "avx512 and bfloat16": (("-march=x86-64-v4", "-mavx512bf16", "-O1"), "avx512_bf16"),  # without matrix tiles
    "x86-64": (("-march=x86-64", "-O1"), "sse2"),
    "16 lanes": (("-march=x86-64", "-O1", "-DWIDTH=16"), "sse2"),  # as AVX-512 has, in pieces
}


@cache
def kernels(name: str) -> Library:
    """The kernels for a set of instructions; a test is skipped where they cannot be compiled or run."""
    flags, needed = INSTRUCTIONS[name]
    if library() is None:
        pytest.skip("no C++ compiler")
    if name != "native" and (platform.machine() != "x86_64" or needed not in instructions()):
        pytest.skip(f"this processor cannot run {name}")
    return Library(compiled(flags))
