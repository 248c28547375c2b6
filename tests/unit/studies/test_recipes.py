"""What the recipe of a part says is done, or refused: nothing of it is dropped."""

from pathlib import Path

import pytest

from archetype.errors import SpecError
from archetype.studies.experiment import Experiment
from archetype.studies.search import SearchFile
from archetype.studies.sweep import Here
from tests.unit.studies import small

LAW = {
    "id": "law", "type": "scaling_law", "says": "a law", "base": small.BASE, "data": small.DATA,
    "sizes": {"a": {}, "b": {}, "c": {}}, "tokens": [100, 200, 300],
}  # fmt: skip
SEARCH = {"title": "one", "base": small.BASE, "data": small.DATA, "rungs": [1], "space": {"d_model": [8]}}
DECIDED = {"spec": "llama-tiny", "data": {"kind": "corpus"}, "seed": 3, "steps": 5}


@pytest.mark.parametrize("key", [*DECIDED, "patience"])
def test_what_other_keys_decide_is_refused(key: str) -> None:
    recipe = small.RECIPE | {key: DECIDED.get(key, 2)}
    parts = {"law": LAW} if key == "patience" else {"width": small.trained(), "law": LAW}
    wholes = [(Experiment, {"title": "x", "parts": [part | {"recipe": recipe}]}) for part in parts.values()]
    for parse, whole in (*wholes, (SearchFile, SEARCH | {"recipe": recipe})):
        with pytest.raises(SpecError, match=rf"recipe\.{key}: is set by other keys of the part; remove it"):
            parse.parse(whole)


def test_a_recipe_may_say_the_steps_where_no_tokens_are_given() -> None:
    part = small.trained(recipe=small.RECIPE | {"steps": 3}, modes={"quick": {"tokens": 64}, "full": {}})
    assert Experiment.parse({"title": "x", "parts": [part]}).parts[0].id == "width"


@pytest.mark.parametrize("path", ["seed", "steps", "version", "spec"])
def test_a_grid_of_what_all_trials_share_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"tune\.grid\.{path}: is the same for all trials"):
        small.study(tmp_path, "full", small.trained(tune={"grid": {path: [1, 2]}}))


def test_the_tokens_of_arms_that_patience_ended_are_those_that_they_saw(tmp_path: Path) -> None:
    recipe = small.RECIPE | {"patience": 1, "evaluate_every": 1, "optimizer": {"kind": "sgd", "learning_rate": 1e-9}}
    study = small.study(tmp_path, "full", small.trained(recipe=recipe))
    study.run(Here(1))
    arms = study.outcome()["parts"][0]["arms"]
    for name, results in study.trained["width"].comparisons()[1][0].results.items():
        assert all(result.about["steps"] < 6 for result in results)
        assert arms[name]["tokens"] == round(sum(r.about["steps"] for r in results) / len(results) * 4 * 8)
