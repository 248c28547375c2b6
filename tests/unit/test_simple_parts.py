"""Parts from outside that do the least: without a state, with numbers read from tensors, and with a mistake."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import archetype
from archetype.api.extension import failure_of_extension, load_extension
from archetype.apps.cli import main
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.training.block_execution import compile_blocks
from tests.helpers import registered

FILE = """
from typing import Literal
import torch
from torch import nn
import archetype
from archetype import spec

class Averaging(spec.Mixer):
    kind: Literal["averaging"] = "averaging"
    reads: bool = False
    fails: bool = False

class AveragingModule(nn.Module):
    def __init__(self, mixer, place):
        super().__init__()
        self.mixer, self.o = mixer, nn.Linear(place.d_model, place.d_model, bias=False)

    def forward(self, x, context, state=None):
        if self.mixer.fails:
            x = x.view(3, 5, 7)  # line 20
        if self.mixer.reads:
            x = x * (2.0 if x.abs().sum().item() > 0 else 0.5)
        lengths = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        return self.o(x.cumsum(1) / lengths[:, None])

archetype.register(Averaging, module=AveragingModule)
"""


@pytest.fixture(autouse=True)
def extension(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "averaging.py").write_text(FILE)
    (tmp_path / "text.txt").write_text("so it is and so it was " * 40)
    with registered.registries_as_before():
        load_extension(tmp_path / "averaging.py")
        yield tmp_path / "averaging.py"


def model(**fields: Any) -> Any:
    data = archetype.load_spec("llama-tiny").dump() | {"d_model": 16, "context_length": 32}
    block = data["layers"][0]["block"] | {"feedforward": {"kind": "gated", "d_ff": 24, "activation": "silu"}}
    return archetype.load_spec(data | {"layers": [block | {"mixer": {"kind": "averaging"} | fields}]})


@pytest.mark.parametrize("reads", [False, True])
def test_a_part_without_a_state_trains_and_is_refused_only_where_it_continues(reads: bool, tmp_path: Path) -> None:
    lm = archetype.train(tmp_path / "run", tmp_path / "text.txt", model(reads=reads), steps=2, batch_size=2)
    assert archetype.evaluate(lm, "so it is").loss > 0  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="AveragingModule: keeps no state, so the model cannot generate"):
        lm.generate("so it", max_new_tokens=2)
    report = archetype.cost_report(lm.spec, batch=1, length=16)
    assert report.flops["decode"] > report.flops["forward"] / 16  # all of the text anew


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's own compiler, which says where a program ends
def test_a_part_that_reads_numbers_is_compiled_around_them() -> None:
    spec, tokens = model(reads=True), torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(0))
    compiled, eager = build(spec), build(spec)
    compile_blocks(compiled)
    assert torch.allclose(compiled(tokens).logits, eager(tokens).logits, atol=1e-5)


def test_a_mistake_of_a_part_is_one_line_with_its_place(
    tmp_path: Path, extension: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(archetype.spec.to_yaml(model(fails=True)))
    monkeypatch.setattr(logging.getLogger("archetype"), "level", logging.WARNING)  # which --verbose sets
    command = ["archetype", "cost", str(tmp_path / "spec.yaml"), "--extension", str(extension)]
    said = {}
    for more in ((), ("--verbose",)):
        monkeypatch.setattr(sys, "argv", [*command, *more])
        with pytest.raises(SystemExit) as end:
            main.main()
        assert end.value.code == 2
        said[more] = capsys.readouterr().err
    place = f"archetype: {extension}:20: mixer averaging, AveragingModule.forward: RuntimeError: shape '[3, 5, 7]' is"
    assert said[()].startswith(place) and said[()].endswith("; --verbose shows the trace\n")
    assert said[()].count("\n") == 1
    assert "Traceback" in said[("--verbose",)] and said[("--verbose",)].endswith(said[()])
    assert failure_of_extension(ValueError("of ours")) is None
