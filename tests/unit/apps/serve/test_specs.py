"""What the page is told about specifications: the same numbers as the Python API, and mistakes with their place."""

from pathlib import Path
from typing import Any

import pytest
import torch

from archetype import cost_report, diff, families, load_spec
from archetype.apps.serve.models import ModelOptions, Models
from archetype.apps.serve.recipes import RecipeRequest, recipe_of
from archetype.apps.serve.specs import EvaluateRequest, Origin, evaluated
from archetype.spec import to_yaml
from archetype.training.defaults import assemble
from archetype.training.recipe import read_recipe
from archetype.training.setup import start
from tests.helpers.cases import case
from tests.helpers.examples import every

MODELS = Models([], ModelOptions(open=lambda place: pytest.fail(place)))
TINY = sorted(name for name in families.presets() if name.endswith("-tiny"))


def evaluate(**fields: Any) -> dict[str, Any]:
    return evaluated(MODELS, EvaluateRequest(**fields))


@pytest.mark.parametrize("name", every(8, ["vit-tiny", *(name for name in TINY if name != "vit-tiny")]))
def test_every_box_of_every_preset_is_counted_once_folded_or_not(name: str) -> None:
    length = None if name == "vit-tiny" else 16
    report = cost_report(name, batch=2, length=length)
    ways: tuple[dict[str, Any], ...] = ({}, {"unfold": True}, {"aspect": "3:2"})
    for way in ways:
        answer = evaluate(preset=name, batch=2, length=length, **way)
        assert answer["cost"] == report.to_json()
        boxes = answer["diagram"]["boxes"]
        sums = {key: sum(box["cost"][key] for box in boxes) for key in ("parameters", "active", "flops")}
        totals = report.parameters
        expected = {"parameters": totals["total"], "active": totals["active"], "flops": report.flops["forward"]}
        assert sums == expected, way
        ids = [box["id"] for box in boxes]
        assert len(ids) == len(set(ids))
        painted = {item.get("id") for item in answer["diagram"]["items"]}
        assert painted >= set(ids)
        assert all(box["field"] in answer["parts"] for box in boxes if box["field"])


def test_unfolded_layers_stand_each_for_itself() -> None:
    folded, unfolded = (evaluate(preset="llama-tiny", unfold=unfold)["diagram"] for unfold in (False, True))
    blocks = [one["id"] for one in unfolded["containers"] if one["kind"] == "block"]
    assert sorted(blocks) == [f"blocks.{layer}" for layer in range(load_spec("llama-tiny").num_layers)]
    assert unfolded["height"] > folded["height"]


def test_a_diagram_in_an_aspect_ratio_has_larger_text() -> None:
    plain, arranged = (evaluate(preset="gpt-oss-20b", aspect=aspect)["diagram"] for aspect in ("", "3:2"))
    assert arranged["width"] / arranged["height"] == pytest.approx(1.5)
    texts = [[item["size"] / drawn["width"] for item in drawn["items"] if item["type"] == "text"]
             for drawn in (plain, arranged)]  # fmt: skip
    assert min(texts[1]) > 1.5 * min(texts[0])
    (problem,) = evaluate(preset="gpt-oss-20b", aspect="wide")["problems"]
    assert "is not an aspect ratio" in str(problem)


def test_a_change_of_a_field_gives_the_changed_file_and_what_differs() -> None:
    start = load_spec("llama-3-8b")
    answer = evaluate(
        source=to_yaml(start), set={"layers[*].mixer.num_kv_heads": 2}, base=Origin(preset="llama-3-8b"), length=1024
    )
    changed = start.parse(start.dump() | {"layers": [block(layer) for layer in start.dump()["layers"]]})
    assert answer["source"] == to_yaml(changed)
    assert answer["diff"] == [{"path": path, "a": a, "b": b} for path, a, b in diff(start, changed)]
    assert answer["diff"][0]["b"] == 2
    assert answer["base"]["state"] == cost_report(start, length=1024).state
    assert answer["cost"]["state"]["bytes_per_token"] * 4 == answer["base"]["state"]["bytes_per_token"]


def block(layer: dict[str, Any]) -> dict[str, Any]:
    inner = layer["block"]
    return layer | {"block": inner | {"mixer": inner["mixer"] | {"num_kv_heads": 2}}}


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("num_heads: 32", "num_heads: 0", "num_heads", "too small"),
        ("num_kv_heads: 8", "num_kv_heads: 5", "num_kv_heads", "divide"),
        ("kind: rotary", "kind: rotory", "position", "not a kind of mixer position"),
        ("d_model: 4096", "d_mode: 4096", "d_mode", "not a known key"),
        ("d_model: 4096", "d_model: [", None, "not YAML"),
        ("vocab_size: 128256", "", None, "missing"),
    ],
)
def test_mistakes_are_said_at_their_line(before: str, after: str, line: str | None, words: str) -> None:
    text = to_yaml(load_spec("llama-3-8b"))
    assert before in text
    broken = text.replace(before, after)
    answer = evaluate(source=broken)
    problem = answer["problems"][0]
    assert not answer["ok"] and answer["source"] == broken and words in problem["message"]
    if line is not None:
        assert line in broken.splitlines()[problem["line"] - 1]
    assert 1 <= problem["line"] <= len(broken.splitlines()) + 1


def test_a_length_beyond_the_positions_is_a_problem_of_its_own() -> None:
    problem = evaluate(preset="gpt2", length=4096)["problems"][0]
    assert problem["path"] == "length" and "1,024" in problem["message"]


def test_no_request_reads_a_file() -> None:
    for field in ("preset", "source"):
        answer = evaluate(**{field: "/etc/hostname"})
        assert not answer["ok"]
    assert "no specification is named" in evaluate()["problems"][0]["message"]


def test_the_form_has_every_kind_of_layer_once() -> None:
    paths = [group["path"] for group in evaluate(preset="gemma3-tiny")["form"]]
    assert paths[0] == "" and len(paths) == 3 and all(path.startswith("layers[") for path in paths[1:])
    sides = {group["path"].partition(".")[0] for group in evaluate(preset="t5-tiny")["form"]}
    assert sides == {"", "encoder", "decoder"}


def test_the_recipe_is_the_one_that_train_would_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("To be, or not to be. " * 500)
    size = Path("text.txt").stat().st_size
    for name in ("llama-tiny", "bert-tiny", "t5-tiny", "ngram-tiny", "megabyte-tiny"):
        with case(name):
            answer = recipe_of(MODELS, RecipeRequest(source=to_yaml(load_spec(name)), size=size))
            Path("own.yaml").write_text(to_yaml(load_spec(name)))
            Path("page.yaml").write_text(answer["recipe"])
            theirs, _ = assemble(None, {"spec": "own.yaml", "data.text": ["text.txt"]})
            ours = read_recipe(Path("page.yaml"))
            assert ours.objective is not None and load_spec(ours.spec) == load_spec("own.yaml")
            assert ours.replace(objective=None, spec="own.yaml") == theirs
            report = cost_report(load_spec(name), ours.batch_size, ours.sequence_length)
            assert answer["flops"] == ours.steps * report.flops["train"]
    start(tmp_path / "run", ours, torch.device("cpu"))  # what the page gives can be trained


def test_what_can_be_learned_depends_on_the_model() -> None:
    kinds = {name: recipe_of(MODELS, RecipeRequest(preset=name)) for name in ("vit-tiny", "t5-tiny", "llama-tiny")}
    assert {name: answer["kinds"] for name, answer in kinds.items()} == {
        "vit-tiny": ["images"], "t5-tiny": ["corpus", "pairs"], "llama-tiny": ["corpus", "labelled_text"]
    }  # fmt: skip
    assert kinds["vit-tiny"]["files"] == ["images.npz"] and kinds["vit-tiny"]["length"] is None
    [problem] = recipe_of(MODELS, RecipeRequest(preset="vit-tiny", data="pairs"))["problems"]
    assert problem["remedy"] == "use images"
    [problem] = recipe_of(MODELS, RecipeRequest(source="kind: decoder\n", data="pairs"))["problems"][:1]
    assert problem["message"]
