"""`cost --device here` says where starting the products takes longer than the roofline of a small model."""

import json

import pytest
from typer.testing import CliRunner

from archetype.apps.cli.main import app
from archetype.machine.hardware import Device
from archetype.runs import peaks


@pytest.mark.parametrize(
    ("source", "launch", "named"),
    [("llama-tiny", 1e-5, "prefill, decode and train"), ("llama-tiny", 0.0, ""), ("llama-3-8b", 1e-5, "")],
)
def test_launch_overhead_is_named_for_small_models(
    source: str, launch: float, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device("here", 1e11, {"float32": 1e13, "bfloat16": 1e13}, None, "measured", launch_seconds=launch)
    monkeypatch.setattr(peaks, "measured_device", lambda: device)
    done = CliRunner().invoke(app, ["cost", source, "--device", "here"])
    assert done.exit_code == 0 and ("launch overhead: starting the " in done.output) == bool(named)
    assert f", longer than {named} of such a small model" in done.output or not named
    data = json.loads(CliRunner().invoke(app, ["cost", source, "--device", "here", "--json"]).output)
    assert data["launches"]["seconds"] == data["launches"]["number"] * launch


def test_the_overhead_of_this_machine_is_that_of_a_call() -> None:
    assert peaks.launch_seconds(peaks.resolve_device("cpu")) > 0
