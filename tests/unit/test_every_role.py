"""A file with a member of every role: each is counted, built, trained, decoded with, drawn, saved and loaded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import archetype
import archetype.training.recipe  # the roles of what a recipe names
from archetype import spec
from archetype.api.extension import load_extension
from archetype.checking.kinds import all_kinds
from archetype.checking.passes import compiled_is_eager
from archetype.checking.run import check_kind
from archetype.errors import SpecError
from archetype.runs.extensions import FILE
from archetype.spec.kinds import Part
from archetype.studies.decisions import Decision
from archetype.studies.evidence import NOT_SHOWN, SHOWN, Evidence
from archetype.studies.verdicts import study_verdicts
from archetype.tokenizers import registry
from tests.helpers import registered
from tests.helpers.examples import every
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance, randomize

EVERY_ROLE = Path(__file__).parent.parent / "helpers" / "every_role.py"
EXACT = 1e-5


@pytest.fixture(autouse=True)
def extension(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[type[Part], set[str]]]:
    """The kinds that the file adds to each role, which are gone after a test."""
    monkeypatch.setattr(registry, "_registered", {})
    with registered.registries_as_before():
        before = {role: set(role.kinds) for role in Part.__subclasses__() if role.__module__.startswith("archetype.")}
        load_extension(EVERY_ROLE)
        yield {role: role.kinds.keys() - kinds for role, kinds in before.items()}


def decoder() -> spec.ModelSpec:
    """A decoder with a part from outside wherever one may stand."""
    attention = {"kind": "attention", "num_heads": 2, "position": "slope"}
    gated = {"kind": "gated", "d_ff": 12, "activation": "log_cosh"}
    experts = {"kind": "experts", "num_experts": 4, "experts_per_token": 2, "expert": gated}
    wiring = {"kind": "ends", "norm": {"kind": "scaled"}}
    even, chosen = attention | {"pattern": "even"}, attention | {"index": "every_second"}
    layers = [
        {"wiring": wiring, "mixer": even, "feedforward": "squared"},
        {"wiring": wiring, "mixer": "running_mean", "feedforward": experts | {"router": "cosine"}},
        {"wiring": wiring, "mixer": chosen, "feedforward": experts | {"router": "turns"}},
        {"wiring": wiring, "mixer": "running_mean", "feedforward": gated | {"activation": {"kind": "softsign"}}},
    ]
    return archetype.load_spec(
        {"vocab_size": 32, "context_length": 24, "d_model": 8, "embedding": {"kind": "factorized", "rank": 3}}
        | {"layers": layers, "residual": "weighed", "final_norm": {"kind": "scaled"}, "head": "two_softmaxes"}
    )


def mean_model() -> spec.ModelSpec:
    """A kind of model from outside, with a part from outside in it."""
    fields = {"kind": "mean", "vocab_size": 32, "context_length": 24, "d_model": 8}
    return archetype.load_spec(fields | {"embedding": {"position": "numbered"}})


def test_no_role_is_left_out(extension: dict[type[Part], set[str]]) -> None:
    """But adapters, which are put around a model that is there."""
    assert {role.__name__ for role, kinds in extension.items() if not kinds} == {"Adapter"}


@pytest.mark.parametrize("model", [decoder, mean_model])
def test_it_is_counted_drawn_and_decoded_with(model: Callable[[], spec.ModelSpec]) -> None:
    drawn = model()
    assert spec.parse(drawn.dump()) == drawn
    built = randomize(archetype.build(drawn, dtype=torch.float64)).eval()
    report = archetype.cost_report(drawn, batch=1, length=10)
    assert report.parameters["total"] == sum(p.numel() for p in built.parameters())
    boxes = archetype.draw(drawn, batch=1, length=10).scene.boxes
    assert report.parameters["total"] == sum(box.cost.parameters for box in boxes)
    assert report.flops["forward"] == sum(box.cost.flops for box in boxes)
    tokens = torch.arange(10)[None]
    whole, state = built(tokens).logits, built.new_state(1, 24)
    first, state = forward_step(built, tokens[:, :4], state)
    rest, state = forward_step(built, tokens[:, 4:], state)
    assert distance(torch.cat((first, rest), 1), whole) < EXACT


@pytest.mark.parametrize("model", [decoder, mean_model])
def test_it_is_trained_saved_loaded_and_writes(model: Callable[[], spec.ModelSpec], tmp_path: Path) -> None:
    """By data, tokenizer, objective, optimizer, schedule and tracker of the same file."""
    recipe = {
        "spec": model().dump(),
        "data": {"kind": "counting", "tokenizer": "digits"},
        "objective": "second_token", "optimizer": {"kind": "heavy_ball"}, "schedule": {"kind": "level"},
        "batch_size": 2, "steps": 2, "trackers": ["lines"],
    }  # fmt: skip
    (file := tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    trained = archetype.train(tmp_path / "run", recipe=file, device="cpu")
    (needed,) = json.loads((tmp_path / "run" / FILE).read_text())
    assert needed["name"] == EVERY_ROLE.name
    assert "loss" in (tmp_path / "run" / "lines.txt").read_text()
    lm = archetype.load(tmp_path / "run", device="cpu")
    assert lm.spec == trained.spec
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(tensor, lm.model.state_dict()[name])
    assert set(lm.generate("1 2 ", max_new_tokens=4)) <= set("0123456789 ")
    with pytest.raises(SpecError, match="cannot do this; it can generate"):
        lm.translate("1")


def test_it_decides_a_study() -> None:
    control, lower = (2.0, 2.1, 1.9), (1.9, 2.0, 1.8)
    decision = Decision.parse_kind({"kind": "every_pair"})
    verdicts = study_verdicts([(decision, Evidence(control, lower)), (decision, Evidence(lower, control))])
    assert [(one.verdict, one.reason) for one in verdicts] == [
        (SHOWN, "the highest difference is -0.1"), (NOT_SHOWN, "the highest difference is +0.1"),
    ]  # fmt: skip


@pytest.mark.parametrize("nth", every(2, [6, 1]))
def test_each_part_holds_what_its_role_asks(nth: int, extension: dict[type[Part], set[str]]) -> None:
    kinds = [(role, kind) for role, kind in all_kinds() if kind.model_fields["kind"].default in extension[role]]
    assert len(kinds) >= 17
    for role, kind in kinds[::nth]:
        report = check_kind(role, kind, without=(compiled_is_eager,))
        assert [(report.kind, row) for row in report.rows if row.result == "fails"] == []
