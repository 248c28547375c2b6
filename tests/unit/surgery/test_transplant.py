"""Transplants: where each tensor comes from, what is promised of the start, and what was measured."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import archetype
from archetype.api import transplanting
from archetype.api.language_model import LanguageModel
from archetype.api.transplanting import REPORT, save
from archetype.errors import CheckpointError, SpecError
from archetype.io import atomic
from archetype.models.initialization import own_tensors
from archetype.nn.ledger import Start
from archetype.spec.edit import assign
from tests.helpers.cases import case
from tests.helpers.options import call

SMALL = ("d_model=32", "num_layers=3", "vocab_size=64", "context_length=48", "layers[*].mixer.num_heads=4")


def trained(*changes: str, preset: str = "llama-tiny") -> LanguageModel:
    """A small model whose tensors are all random, as if trained."""
    spec = assign(archetype.load_spec(preset), [*SMALL, *changes])
    model = archetype.build(spec, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for owned in own_tensors(model):
            noise = torch.randn(owned.tensor.shape, generator=generator)
            owned.tensor.add_(noise * (0.3 if owned.tensor.dim() == 1 else 0.08))
    return LanguageModel(spec, model.eval())


MHA = ("layers[*].mixer.num_kv_heads=4",)
GQA = ("layers[*].mixer.num_kv_heads=2",)
EXPERTS = (
    "layers[*].feedforward={kind: experts, num_experts: 4, experts_per_token: 2, router: {kind: softmax, renormalize: "
    "true}, expert: {kind: gated, d_ff: 64, activation: silu}}"
)
FF = ("layers[*].feedforward.d_ff=64",)


@pytest.mark.parametrize(
    ("before", "changes", "start"),
    [
        ((), ("name=other",), Start.SAME),
        (GQA, ("layers[*].mixer.num_kv_heads=4",), Start.ROUNDED),
        (FF, ("layers[*].feedforward.d_ff=96",), Start.ROUNDED),
        (FF, (EXPERTS,), Start.ROUNDED),
        ((), ("layers[*].mixer.pattern={kind: window, size: 48}",), Start.ROUNDED),
        ((), ("num_layers=6",), Start.SAME),
        ((), ("vocab_size=80",), Start.ROUNDED),
        (("head.tied=true",), ("head.tied=false",), Start.SAME),
    ],
)
def test_a_start_is_equal_where_it_is_promised(before: tuple[str, ...], changes: tuple[str, ...], start: Start) -> None:
    donor = trained(*before)
    report = archetype.transplant(donor, changes).report
    assert report.proof is not None
    assert report.proof.start <= start
    assert report.ledger.start <= start
    assert report.proof.loss_before == pytest.approx(report.proof.loss_after, rel=1e-5)


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (MHA, ("layers[*].mixer.num_kv_heads=2",)),
        (FF, ("layers[*].feedforward.d_ff=32",)),
        ((), ("layers[*].mixer.pattern={kind: window, size: 4}",)),
        ((*MHA, "layers[*].mixer.convolutions={kernel: 3}"), ("layers[*].mixer.num_kv_heads=2",)),
        ((), ("num_layers=2",)),
        ((), ("layers[*].mixer.position.theta=500",)),
        (
            ("layers[1].mixer={kind: none}",),
            ("layers[1].mixer={kind: attention, num_heads: 4}", "layers[1].feedforward={kind: none}"),
        ),
    ],
)
def test_a_changed_start_is_measured(before: tuple[str, ...], changes: tuple[str, ...]) -> None:
    report = archetype.transplant(trained(*before), changes).report
    assert report.ledger.start is Start.CHANGED
    assert report.proof is not None
    assert report.proof.start is Start.CHANGED
    assert report.proof.divergence > 1e-4
    assert len(report.proof.layers) == 2 or any(layer.distance > 1e-3 for layer in report.proof.layers)


def test_every_tensor_is_in_the_report() -> None:
    done = archetype.transplant(trained(*FF), ["num_layers=4", "layers[0].feedforward.d_ff=80"])
    assert done.report.ledger.tensors.keys() == done.model.model.state_dict().keys()
    taken = done.report.ledger.tensors["blocks.0.feedforward.down.weight"]
    assert (taken.how, taken.note) == ("grown", "16 new F, zero")


def test_merged_heads_are_the_mean_of_their_group() -> None:
    donor = trained(*MHA)
    merged = archetype.transplant(donor, ["layers[*].mixer.num_kv_heads=2"]).model.model
    first = archetype.transplant(donor, ["layers[*].mixer.num_kv_heads=2"], choices={"heads": "first"}).model.model
    before, mean, one = (model.get_parameter("blocks.0.mixer.k.weight") for model in (donor.model, merged, first))
    groups = before.unflatten(0, (2, 2, -1))
    torch.testing.assert_close(mean, groups.mean(1).flatten(0, 1))
    torch.testing.assert_close(one, groups[:, 0].flatten(0, 1))


def test_heads_that_are_equal_merge_without_a_change() -> None:
    spread = archetype.transplant(trained(*GQA), ["layers[*].mixer.num_kv_heads=4"]).model
    report = archetype.transplant(spread, ["layers[*].mixer.num_kv_heads=2"]).report
    assert report.proof is not None
    assert max(report.proof.start, report.ledger.start) <= Start.ROUNDED


def test_wider_vectors_start_equal_if_epsilon_follows() -> None:
    # the gradient reaches the new features: writes are zero, reads are not
    donor = trained(*FF)
    eps = donor.spec.dump(full=True)["final_norm"]["eps"]
    norms = [f"final_norm.eps={eps / 2}", f"layers[*].wiring.norm.eps={eps / 2}"]
    wider = ["d_model=64", "layers[*].mixer.head_dim=8", *norms]
    done = archetype.transplant(donor, wider)
    assert done.report.proof is not None
    assert done.report.proof.start is Start.ROUNDED
    assert done.report.ledger.start is Start.ROUNDED
    assert archetype.transplant(donor, wider[:2]).report.ledger.start is Start.CHANGED


def test_a_transplant_is_written_as_a_run(tmp_path: Path) -> None:
    donor = trained(*FF)
    done = archetype.transplant(donor, [EXPERTS])
    save(done, tmp_path / "new", "donor")
    loaded = archetype.load(tmp_path / "new")
    assert loaded.spec == done.model.spec
    record = json.loads((tmp_path / "new" / REPORT).read_text())
    assert record["donor"] == "donor"
    assert record["promise"] == "rounded"


def test_a_folder_appears_with_its_report_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = archetype.transplant(trained(*FF), [EXPERTS])

    def full(path: Path, data: object) -> None:
        raise CheckpointError(str(path), "no space left", "free some space")

    monkeypatch.setattr(transplanting, "atomic", SimpleNamespace(new_folder=atomic.new_folder, write_json=full))
    with pytest.raises(CheckpointError, match=r"new/transplant\.json: no space left"):
        save(done, tmp_path / "new", "donor")
    assert not any(tmp_path.iterdir())


def test_a_donor_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="kind"):
        archetype.transplant(trained(), spec="bert-tiny")


def test_layers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(SpecError, match="layers 0 to 2"):
        archetype.transplant(trained(), ["num_layers=2"], layers=[0, 7])


def test_what_is_written_is_checked_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    for words, said in (("--to old", "old: already exists"), ("--to new --layers 1-x", "--layers: '1-x'")):
        with case(words):
            done = call(["transplant", "missing", "a=1", *words.split()], tmp_path)
            assert done.status == 2 and said in done.error
