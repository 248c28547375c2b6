"""The memory that a device has free: of the system, within the limits of control groups."""

import os
from pathlib import Path

import pytest
import torch

from archetype.machine import memory

CPU = torch.device("cpu")


def test_what_this_machine_has_free_is_some_of_what_it_has() -> None:
    free = memory.free_memory(CPU)
    assert free is not None
    assert 2**20 < free < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.free_memory(torch.device("meta")) is None


def test_the_most_that_was_held_is_at_least_what_is_held() -> None:
    block = torch.ones(2**23)
    peak = memory.peak_memory(CPU)
    assert peak is not None and block.nbytes < peak < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    del block
    assert peak <= (memory.peak_memory(CPU) or 0) and memory.peak_memory(torch.device("meta")) is None


def test_a_limit_of_the_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names, limit in (({}, b"5000\n"), (memory.IN_VERSION_1, b"9223372036854771712\n"), ({}, b"max\n")):
        for name, contents in (("memory.max", limit), ("memory.current", b"3000\n"), ("memory.stat", b"a 1\n")):
            (tmp_path / names.get(name, name)).write_bytes(contents)
        expected = {b"5000\n": 2000, b"max\n": float("inf")}.get(limit, int(limit) - 3000 if limit != b"max\n" else 0)
        assert memory._room(tmp_path, names) == expected
    (tmp_path / "memory.max").write_text("5000")
    (tmp_path / "memory.stat").write_text("active_file 7\ninactive_file 600\n")
    assert memory._room(tmp_path, {}) == 2600
    assert memory._room(tmp_path / "absent", {}) == float("inf")
