"""Memory that is freed stays with the process, where its C library can be told so."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from archetype.machine.allocation import keep_freed_memory

# How many pages the system makes for a block, of which the process has had a larger one before.
PAGE_FAULTS = """
import resource, sys, torch
from archetype.machine.allocation import keep_freed_memory
def faults(numbers):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(numbers)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
limit, numbers = sys.argv[1:]
larger, numbers = int(numbers) * 11 // 10, int(numbers)
faults(larger)
print(faults(numbers))
keep_freed_memory(int(limit) if limit else None)
faults(larger)
print(faults(numbers))
"""
GLIBC = platform.libc_ver()[0] == "glibc"


@pytest.mark.skipif(not GLIBC, reason="needs glibc, the C library that can be told so")
@pytest.mark.parametrize(
    ("limit", "numbers"), [(None, 10_000_000), pytest.param(2**30, 5_000_000, marks=pytest.mark.slow)]
)
def test_a_block_that_was_freed_before_needs_no_new_pages(limit: int | None, numbers: int) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    program = [sys.executable, "-c", PAGE_FAULTS, str(limit or ""), str(numbers)]
    output = subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout
    before, after = map(int, output.split())
    pages = 4 * numbers // 4096
    assert before > pages / 2
    assert after < pages / 20


def test_where_the_c_library_has_no_such_setting_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str | None] = []

    def open_library(name: str | None) -> object:
        calls.append(name)
        return object()

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    for platform_name in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform_name)
        keep_freed_memory()
    assert calls == []
    monkeypatch.setattr(sys, "platform", "linux")  # with musl, say
    keep_freed_memory()
    assert calls == [None]
