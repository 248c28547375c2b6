"""`archetype check`: the parts of a file or of a name, as a table or as JSON, and what it refuses."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from archetype import spec
from archetype.apps.cli import main
from archetype.checking.examples import examples
from archetype.checking.passes import compiled_is_eager, device_changes_nothing
from archetype.checking.run import INVARIANTS
from archetype.checking.subject import Subject, Violated

LINEAR_ATTENTION = Path(__file__).parents[3] / "helpers" / "linear_attention.py"
WRONG = """
import archetype
from typing import Literal
from torch import nn

class Shifted(archetype.spec.FeedForward):
    kind: Literal["shifted"] = "shifted"

class Module(nn.Module):
    def __init__(self, feedforward, place):
        super().__init__()
        self.up = nn.Linear(place.d_model, place.d_model)

    def forward(self, x, context, state=None):
        return self.up(x).roll(-1, 1)

archetype.register(Shifted, module=Module)
"""


@pytest.fixture(autouse=True)
def kinds_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiler, which would go through the checks of shapes; what a test registers is gone after it."""
    asked = tuple(invariant for invariant in INVARIANTS if invariant.check is not compiled_is_eager)
    monkeypatch.setattr("archetype.checking.run.INVARIANTS", asked)
    kinds = [(role, dict(role.kinds)) for role in (spec.Mixer, spec.FeedForward)]
    yield
    for role, before in kinds:
        role.kinds = before


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int | str | None, str, str]:
    """The exit status of a command, its output, and its line on standard error."""
    monkeypatch.setattr(sys, "argv", ["archetype", "check", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    return end.value.code, *capsys.readouterr()


def test_a_file_is_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, error = run(monkeypatch, capsys, str(LINEAR_ATTENTION), "--set", "num_heads=2")
    assert status == 0 and error.startswith("device: ")
    heading, _, names, *rows = out.splitlines()
    assert heading == "mixer gated_linear_attention, 2 models: defaults, in an encoder"
    assert names.split() == ["invariant", "result", "finding"]
    named = [one.name for one in INVARIANTS for row in rows if row.startswith(one.name)]  # a finding may take two lines
    assert len(set(named) - {"compiled blocks as eager"}) == len(INVARIANTS) - 1
    assert "in chunks as whole                   holds" in rows


def test_what_fails_is_said_in_its_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "shifted.py"
    file.write_text(WRONG)
    status, out, error = run(monkeypatch, capsys, str(file), "--json")
    (kind,) = json.loads(out)["kinds"]
    assert (status, error, kind["role"], kind["kind"]) == (1, "", "feed forward", "shifted")
    failing = {row["invariant"]: row["finding"] for row in kind["rows"] if row["result"] == "fails"}
    finding = "defaults: tokens from position 1 on change position 0 by "
    assert failing["later tokens change nothing"].startswith(finding)


def test_another_device_is_compared_with_the_processor() -> None:
    """Without a GPU, the processor stands for one; what it computes otherwise is a row that fails."""
    subject = Subject(examples(spec.Norm, spec.RMSNorm)[0].model)
    subject.device = torch.device("cpu", 0)
    device_changes_nothing(subject)
    next(iter(subject.exact.model.parameters())).mul_(1.001)
    with pytest.raises(Violated, match=r"^cpu differs by \de-0\d$"):
        device_changes_nothing(subject)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("gruu",),
            "gruu: is not a kind of part or model (`archetype explain` lists all kinds); did you mean gru?",
        ),
        (("part.py",), "part.py: there is no such file; pass a Python file that registers parts, or a kind's name"),
        (("gru", "--set", "size=2"), "--set size: the part has no such field; use one of bidirectional"),
        (("gru", "--set", "size"), "--set size: has no value; write FIELD=VALUE, such as num_heads=2"),
        (("window", "--set", "size=0"), "size: 0 is too small; use more than 0"),
        (("gru", "--device", "gpu"), "device: there is no device 'gpu'; use cpu"),
        (("gru", "--set", "bidirectional=1"), "bidirectional: 1 is neither true nor false; use true or false"),
    ],
)
def test_what_cannot_be_checked_is_refused_in_one_line(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, error = run(monkeypatch, capsys, *arguments)
    assert (status, out, error.splitlines()[-1]) == (2, "", f"archetype: {message}")


def test_a_file_without_parts_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "nothing.py"
    file.write_text("")
    status, out, error = run(monkeypatch, capsys, str(file))
    assert (status, out) == (2, "") and error.startswith(f"archetype: {file}: registers no part of a model; call ")


def test_a_long_check_says_where_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, where nobody watches a terminal; and nothing where it is short."""
    monkeypatch.setattr("archetype.apps.cli.check.SECONDS_BETWEEN_LINES", 600.0)
    assert "checking" not in run(monkeypatch, capsys, "silu")[2]
    monkeypatch.setattr("archetype.apps.cli.check.SECONDS_BETWEEN_LINES", 0.0)
    status, output, told = run(monkeypatch, capsys, "silu")
    assert status == 0 and "holds" in output
    assert "checking defaults: finite numbers\n" in told
