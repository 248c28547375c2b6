"""Devices by name, and one clear message where there is none."""

from typing import Any

import pytest
import torch

from archetype.errors import SpecError
from archetype.machine.device import has_bfloat16, resolve_device, resolve_dtype


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_a_device_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpus, mps, name, expected in (
        (0, False, "cpu", "cpu"), (0, False, "auto", "cpu"), (2, False, "auto", "cuda"),
        (2, False, "cuda", "cuda"), (2, False, "cuda:1", "cuda:1"), (0, True, "mps", "mps"), (0, True, "auto", "cpu"),
    ):  # fmt: skip
        machine(monkeypatch, gpus, mps)
        assert resolve_device(name) == resolve_device(torch.device(expected)) == torch.device(expected)


@pytest.mark.parametrize(
    ("gpus", "mps", "name", "message"),
    [
        (0, False, "cuda", "device: this machine has no cuda; use cpu"),
        (0, False, "mps", "device: this machine has no mps; use cpu"),
        (2, False, "cuda:2", "device: this machine has no cuda:2; use cpu, cuda:0 or cuda:1"),
        (0, True, "gpu", "device: there is no device 'gpu'; use cpu or mps"),
        (0, False, "", "device: there is no device ''; use cpu"),
        (0, False, "meta", "device: meta tensors have no data to compute with; use cpu"),
        (0, False, "cpu:3", "device: this machine has no cpu:3; use cpu"),
        (0, False, "xpu", "device: this machine has no xpu; use cpu"),
    ],
)
def test_a_device_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, gpus: int, mps: bool, name: str, message: str
) -> None:
    machine(monkeypatch, gpus, mps)
    with pytest.raises(SpecError) as caught:
        resolve_device(name)
    assert str(caught.value) == message
    assert resolve_device("meta", allow_meta=True) == torch.device("meta")


def test_auto_computes_in_bfloat16_where_the_device_has_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities: dict[str, Any] = {}
    is_new = True  # of an Ampere or later; before it torch emulates bfloat16, and says that it is supported
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or is_new)
    has_bfloat16.cache_clear()
    cpu = torch.device("cpu")
    assert resolve_dtype("auto", cpu) == "float32" and resolve_dtype("bfloat16", cpu) == "bfloat16"
    assert resolve_dtype("auto", torch.device("mps")) == "float32"
    assert resolve_dtype("auto", torch.device("cuda")) == "bfloat16"
    is_new = False
    capabilities["avx512_bf16"] = True
    has_bfloat16.cache_clear()
    assert resolve_dtype("auto", torch.device("cuda")) == "float32"
    assert resolve_dtype("auto", cpu) == "bfloat16"
    has_bfloat16.cache_clear()  # what this machine has
