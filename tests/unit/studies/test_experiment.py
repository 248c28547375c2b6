"""Experiment files: what they say, what is refused, and what their arms become."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from archetype.errors import ArchetypeError, SpecError
from archetype.io.yaml import mapping_to_yaml, read_mapping
from archetype.studies.arms import quantities
from archetype.studies.calibration import calibration_file
from archetype.studies.claims import CHECKOUT, find_claims
from archetype.studies.experiment import Experiment, read_experiment
from archetype.studies.parts import TYPES, CheckPart, TrainedPart
from archetype.studies.registry import load_checks
from archetype.studies.search import Search, read_search
from archetype.studies.store import Store
from archetype.studies.study import Study
from tests.unit.studies.small import BASE, experiment, study, trained

MISTAKES = [
    ({"arms": {"a": {}}}, "parts[0].arms: there is only one arm"),
    ({"type": "trainde"}, f"parts[0].type: 'trainde' is not a type of part ({', '.join(TYPES)}); did you mean"),
    ({"metirc": {}}, "parts[0].metirc: is not a known key; did you mean metric?"),
    ({"metric": {"beter": "lower"}}, "parts[0].metric.beter: is not a known key; did you mean better?"),
    ({"decide": {"kind": "equal"}}, "'equal' is not a kind of decision"),
    ({"between": ("a", "b")}, "parts[0].between: 'b' is not an arm"),
    ({"match": {"free": {"wdie": "d_model"}}}, "'wdie' is not an arm; did you mean wide?"),
    ({"id": "No id"}, "parts[0].id: 'No id' is not a valid id"),
    ({"tune": {"grid": {}, "seeds": [1]}}, "are also seeds of the comparison; use numbers from 2 on"),
    ({"modes": {"quick": {}}}, "parts[0].modes.full: is missing"),
    ({"metric": {"positions": [8, 4]}}, "parts[0].metric.positions: [8, 4] is empty"),
]
IMPOSSIBLE = [
    ({"arms": {"a": {}, "b": {"d_mdoel": 4}}}, "arms.b: d_mdoel: is not a known key; did you mean d_model?"),
    ({"arms": {"a": {}, "b": {"recipe.seed": 4}}}, "arms.b: recipe.seed: is the same for all arms"),
    ({"arms": {"a": {}, "b": {"metric.name": "test.accuracy"}}}, "arms.b: metric.name: is the same for all arms"),
    ({"arms": {"a": {}, "b": {"data.tokenizer": "words"}}, "data": "words"}, "data.tokenizer: is the same for all"),
    ({"arms": {"a": {}, "b": {"recipe.batch_siz": 4}}}, "batch_siz: is not a known key; did you mean batch_size?"),
    ({"match": {"params": "0.5%"}}, "arms.wide: non_embedding is"),
    ({"data": "nowhere"}, "nowhere: there is no such corpus"),
    ({"data": {"kind": "images", "file": "x"}}, "data of kind images cannot be used in studies"),
    ({"tune": {"grid": {"optimiser.learning_rate": [0.1]}}}, "is not a recipe field; did you mean optimizer?"),
    ({"base": "nothing.yaml"}, "nothing.yaml"),
]


def own_studies() -> list[Path]:
    return sorted(file for file in (CHECKOUT / "own").glob("*.yaml") if file.stem != "search")


def test_mistakes_are_said_in_one_line() -> None:
    for change, message in MISTAKES:
        with pytest.raises(SpecError) as error:
            experiment(trained(**change))
        assert message in str(error.value).splitlines()[0], change
        assert len(str(error.value).splitlines()[0]) <= 300


def test_a_search_and_an_experiment_are_told_apart() -> None:
    with pytest.raises(SpecError, match=r"search\.yaml: is a search, not an experiment; .*compare search"):
        read_experiment(CHECKOUT / "own" / "search.yaml")
    with pytest.raises(SpecError, match=r"muon\.yaml: is an experiment, not a search; .*compare run"):
        read_search(CHECKOUT / "own" / "muon.yaml")


def test_what_cannot_be_trained_is_refused_before_any_run(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Some words to learn from, and some more. " * 500)
    for change, message in IMPOSSIBLE:
        with pytest.raises(ArchetypeError) as error:
            study(tmp_path, "full", trained(**change))
        assert message in str(error.value), change
    assert not (tmp_path / "store" / "runs").exists()


def test_the_hash_is_of_all_that_is_fixed_beforehand(tmp_path: Path) -> None:
    hashes = {experiment(trained(**change)).hash for change in ({}, {"seeds": 3}, {"decide": {"kind": "equivalence"}})}
    assert len(hashes) == 3
    data = {"title": "Width", "parts": [trained(base="base.yaml")]}
    (tmp_path / "base.yaml").write_text(mapping_to_yaml(BASE))
    (tmp_path / "file.yaml").write_text(mapping_to_yaml(data))
    first = read_experiment(tmp_path / "file.yaml").hash
    assert first == experiment().hash  # a model that lies beside the file is part of it
    (tmp_path / "base.yaml").write_text(mapping_to_yaml(BASE | {"d_model": 12}))
    assert read_experiment(tmp_path / "file.yaml").hash != first


def test_arms_are_matched_by_a_free_size(tmp_path: Path) -> None:
    arms: dict[str, Any] = {
        "a": {},
        "mlp": {"layers[*].feedforward": {"kind": "mlp", "d_ff": 16, "activation": "relu"}},
    }
    match = {"params": "0.5%", "free": {"mlp": "layers[*].feedforward.d_ff"}}
    matched = study(tmp_path, "full", trained(arms=arms, match=match)).trained["width"].arms
    assert matched["mlp"].spec.layers[0].feedforward.d_ff == 24  # type: ignore[union-attr]
    a, mlp = (quantities(matched[name]) for name in ("a", "mlp"))
    assert a == mlp
    assert matched["mlp"].solved == "layers[*].feedforward.d_ff: 16 -> 24, for parameters"


def test_an_arm_changes_recipe_data_metric_and_seeds(tmp_path: Path) -> None:
    change = {
        "recipe.optimizer.kind": "lion",
        "data.num_pairs": 3,
        "data.symbols": 10,
        "metric.minus": {"data": {"num_pairs": 1}},
        "seed_offset": 5,
    }
    arms = study(tmp_path, "full", trained(arms={"a": {}, "b": change})).trained["width"].arms
    b = arms["b"]
    assert (b.recipe.optimizer.kind, b.recipe.data.num_pairs, b.seed_offset) == ("lion", 3, 5)  # type: ignore[attr-defined]
    assert b.metric.minus == {"data": {"num_pairs": 1}} and arms["a"].metric.minus is None
    assert b.recipe.steps == 6 and b.tokens == 192
    # each arm is compared with a guess at its own task
    assert b.data.baseline == b.recipe.data.baseline() != arms["a"].data.baseline  # type: ignore[attr-defined]


def test_the_files_of_the_claims_are_whole_and_obey_the_schema() -> None:
    obeys = jsonschema.Draft202012Validator(Experiment.model_json_schema()).validate
    checks: set[str] = set()
    known, files = load_checks(CHECKOUT), [*find_claims().values(), calibration_file()]
    files += own_studies()
    assert len(files) > 25
    for file in files:
        read = read_experiment(file)
        obeys(read_mapping(file))
        for part in read.parts:
            if isinstance(part, TrainedPart):
                assert part.modes.full.tokens, (file, part.id)
            elif isinstance(part, CheckPart):
                check = known[part.check]
                assert (check.claim, check.kind) == (read.claim, part.type), part.check
                checks.add(part.check)
    assert checks == set(known)  # no check is in no file


@pytest.mark.parametrize("numbers", [[6, 25], pytest.param([], marks=pytest.mark.slow)], ids=["some", "all"])
def test_every_arm_of_every_claim_can_be_built_and_matched(numbers: list[int], tmp_path: Path) -> None:
    load_checks(CHECKOUT)
    text = "".join(chr(32 + (7 * n * n + n) % 90) for n in range(30_000))
    for name in ("tinyshakespeare", "pystdlib"):
        (tmp_path / f"{name}.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archetype.studies.corpora.library_text", lambda: text)
        others = [] if numbers else [calibration_file(), *own_studies()]
        claims = find_claims()
        for file in [*(claims[number] for number in numbers or claims), *others]:
            Study(read_experiment(file), "full", tmp_path, Store(tmp_path / "store"))
        Search(read_search(CHECKOUT / "own" / "search.yaml"), tmp_path, Store(tmp_path / "store"))


def test_counts_are_written_with_a_letter_for_their_size() -> None:
    for text, count in (("64", 64), ("2k", 2_000), ("1.5M", 1_500_000), ("0.25G", 250_000_000)):
        value = int(text) if text.isdigit() else text
        part = experiment(trained(modes={"full": {"tokens": value}})).parts[0]
        assert part.modes.full.tokens == count  # type: ignore[union-attr]
