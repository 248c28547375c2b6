"""A walk over all keys of an experiment: each changes what is run or said, is refused, or says here why neither is.

Runs are pretended: what is asked for is a run's key, with the measurements, the text and the device.
"""

import copy
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from archetype.errors import ArchetypeError
from archetype.spec.base import Spec
from archetype.spec.edit import put
from archetype.studies import registry, scaling
from archetype.studies import study as studies
from archetype.studies.decisions import Decision
from archetype.studies.experiment import Experiment
from archetype.studies.outcome import Outcome
from archetype.studies.parts import CheckPart, ScalingLawPart, TrainedPart
from archetype.studies.report import markdown
from archetype.studies.settings import Expectation, Match, Metric, Mode, Modes, Tune
from archetype.studies.study import Study
from tests.helpers.examples import every
from tests.unit.studies.pretended import GRID, LOSS_BY_RATE, Pretended
from tests.unit.studies.small import BASE, DATA, RECIPE, trained

LEFT_OUT = re.compile(r"^Predicted on \S+:|^## Record$[\s\S]*", re.MULTILINE)  # dates, the hash, the machine
OTHER_DATA = DATA | {"symbols": 10}
DEEP = BASE | {"layers": [*BASE["layers"]] * 2}
TEXT = {"text": "words", "tokenizer": "bytes"}
ON_TEXT = {"data": [TEXT], "base": BASE | {"vocab_size": 256}, "metric": {"name": "test.loss"}}
TUNED = {"grid": GRID, "seeds": [900], "extend": 1}
RATE = {"grid": {"optimizer.learning_rate": [0.001, 0.01]}}
CHECK = {"id": "blocks", "type": "analytic", "says": "It grows", "check": "seats.spread"}
LAW = {
    "id": "law", "type": "scaling_law", "says": "Small runs predict a larger one", "base": BASE, "data": DATA,
    "sizes": {f"d{width}": {"d_model": width} for width in (8, 16, 24, 32)}, "tokens": [64, 128], "recipe": RECIPE,
}  # fmt: skip
PARTS: dict[str, dict[str, Any]] = {"check": CHECK, "trained": trained(seeds=6), "law": LAW}
ARMS = {"a": {}, "wide": {"d_model": 16}, "wider": {"d_model": 24}}

CHANGES: dict[str, Any] = {  # of keys, another value for each; with the part, its rule or the mode first, for that
    "split": "end",
    "claim": 7, "title": "Other", "sentence": "Another.", "headline": "Mind this.", "is_calibration": True,
    "parts": [trained(id="other", seeds=6)], "id": "other", "says": "Otherwise", "check": "seats.other",
    "check type": "identity", "base": DEEP, "arms": ARMS, "recipe": RECIPE | {"batch_size": 2}, "seeds": 7,
    "limits": ["little"], "between": ["wider", "wide"], "sizes": {f"d{width}": {"d_model": width}
                                                                for width in (8, 16, 24, 40)},
    "tokens": [64, 256], "margin": 1e-9, "quick": 3, "tune": TUNED, "law tune": {"grid": GRID}, "data": OTHER_DATA,
    "metric": {"name": "test.accuracy"}, "decide": {"kind": "equivalence"}, "modes": {"full": {"tokens": 384}},
    "match": {"params": 0.1}, "match.params": 0.1, "match.flops": 0.1, "match.state": 0.1,
    "match.free": "layers[*].feedforward.d_ff", "match.solve": "state", "metric.name": "test.accuracy",
    "metric.better": "higher", "metric.length": 4, "metric.positions": [2, 4], "metric.skip": 6,
    "metric.data": {"length": 4}, "metric.minus": {"length": 4}, "tune.grid": {"batch_size": [2, 4]},
    "tune.seeds": [901], "tune.extend": 0, "expect": {"verdict": "shown"}, "expect.verdict": "not shown",
    "expect.effect": ["-5%", "-1%"], "expect.source": "a paper", "modes.full": {"tokens": 384},
    "modes.quick": {"tokens": 96}, "modes.extended": {"seeds": 4}, "modes.gpu": {}, "mode.tokens": 384,
    "mode.seeds": 4, "mode.tune": RATE, "mode.base": DEEP, "mode.data": OTHER_DATA, "mode.sizes": [DEEP],
    "mode.device": "cuda", "gpu mode.device": "cpu", "decide.margin": "20%", "decide.side": "worse",
    "at_least decide.side": "above", "decide.than": 0.04, "decide.low": 1.46, "decide.high": 1.44,
    "slope decide.low": -0.001, "slope decide.high": -0.5, "decide.x": {"a": 1, "wide": 4}, "arm.spec": DEEP,
    "retained": [{"name": "test.accuracy"}], "metric.task": "piqa", "metric.limit": 3,
    "arm.seed_offset": 100, "arm.recipe.batch_size": 2, "arm.data.symbols": 10, "arm.metric.length": 4, "arm.d_ff": 3,
}  # fmt: skip
UNSEEN = {  # keys that change nothing, and why
    "version": "of the file's format, and there is one", "match.tokens": "has one value",
    "trained type": "is the part's", "law type": "is the part's", "decide.kind": "is walked as decide",
}  # fmt: skip
FAR = "the arms of this part are far apart"
REFUSED = {  # what no other value of the key can be, and why
    "check type": "is that of its check", "check expect.effect": "a check has no effect",
    "law expect.effect": "a law has no effect", "law tune.extend": "the grid of a law stays as it is",
    "experiment is_calibration": "needs other parts", "retained": "no arm here starts from weights",
    "metric.task": "belongs to test.task", "metric.limit": "belongs to a task",
    "trained match": FAR, "trained match.params": FAR, "trained match.flops": FAR, "trained match.state": FAR,
}  # fmt: skip
NEAR = {"arms": {"a": {}, "shared": {"layers[*].mixer.num_kv_heads": 1}}}
SOLVED = NEAR | {"match": {"free": "layers[*].mixer.num_kv_heads"}}
WHERE: dict[str, dict[str, Any]] = {  # what else a part says, so that a key can be seen
    "split": ON_TEXT, "between": {"arms": ARMS}, "match.free": NEAR, "match.solve": SOLVED,
    "metric.skip": {**ON_TEXT, "metric": {"name": "test.loss", "positions": [2, 4]}},
    "metric.positions": ON_TEXT, "metric.length": ON_TEXT, "arm.metric.length": ON_TEXT,
    "tune.grid": {"tune": {"grid": GRID}}, "tune.seeds": {"tune": {"grid": GRID}},
    "tune.extend": {"tune": {"grid": {"optimizer.learning_rate": [0.0001, 0.001, 0.01]}, "extend": 1}},
    "decide.margin": {"arms": {"a": {}, "again": {"seed_offset": 100}}}, "law tune.extend": {"tune": {"grid": GRID}},
}  # fmt: skip
DECISIONS: dict[str, dict[str, Any]] = {
    "difference": {}, "equivalence": {}, "at_least": {"than": 0.01, "side": "below"},
    "within": {"low": 1.4, "high": 1.5}, "slope": {"x": {"a": 1, "wide": 2}, "low": -0.07, "high": 0.0}, "identity": {},
}  # fmt: skip
MODES = tuple(Modes.model_fields)


def _keys() -> Iterator[tuple[str, str, str, str]]:
    """(part, mode, path, key of the tables) of every key of an experiment."""
    for key in Experiment.model_fields:
        yield "experiment", "full", key, key
    groups: dict[str, type[Spec]] = {"match": Match, "metric": Metric, "tune": Tune, "expect": Expectation}
    classes: dict[str, Any] = {"check": CheckPart, "trained": TrainedPart, "law": ScalingLawPart}
    for part, cls in classes.items():
        for key in cls.model_fields:
            yield part, "quick" if key == "quick" else "full", key, key
            for inner in groups[key].model_fields if key in groups else ():
                yield part, "full", f"{key}.{inner}", f"{key}.{inner}"
    for mode in MODES:
        yield "trained", mode, f"modes.{mode}", f"modes.{mode}"
        for key in Mode.model_fields:
            yield "trained", mode, f"modes.{mode}.{key}", f"mode.{key}"
    for kind, decision in Decision.kinds.items():
        for key in decision.model_fields:
            yield f"trained {kind}", "full", f"decide.{key}", f"decide.{key}"
    for name, path in {"spec": "spec", "seed_offset": "seed_offset", "recipe.batch_size": "recipe.batch_size",
                       "data.symbols": "data.symbols", "metric.length": "metric.length",
                       "d_ff": "layers[0].feedforward.d_ff"}.items():  # fmt: skip
        yield "trained", "full", f"arms.wide {path}", f"arm.{name}"


def _seats(name: str, quick: bool) -> Outcome:
    return Outcome(True, f"{name} {'quick' if quick else 'whole'}")


@pytest.fixture(autouse=True)
def in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is calibrated, a text, two checks, and a law that is fitted quickly."""
    monkeypatch.setattr(studies, "read_calibration", lambda store: {"passed": True, "deviation": 0.01})
    monkeypatch.setattr(studies, "write_calibration", lambda *about: None)
    for name, value in {"NUM_BOOTSTRAPS": 2, "STARTS": scaling.STARTS[:1]}.items():
        monkeypatch.setattr(scaling, name, value)
    names = ("seats.spread", "seats.other")
    checks = {name: registry.Check(name, 1, "a", "analytic", partial(_seats, name)) for name in names}
    monkeypatch.setattr(registry, "_CHECKS", checks)
    (tmp_path / "words.txt").write_text("the cat sat on a mat " * 1200)


def observed(folder: Path, data: dict[str, Any], mode: str) -> str:
    """What a study runs, and what its report says."""
    store = Pretended(folder / "store", LOSS_BY_RATE)
    one = Study(Experiment.parse(data), mode, folder, store)
    while requests := one.needed():
        store.make(requests)
    asked = [(r.key, [metric.dump() for metric in r.metrics], r.test, r.device) for r in store.asked]
    return json.dumps(asked) + LEFT_OUT.sub("", markdown(one.outcome()))


def _experiment(part: str, mode: str, key: str) -> dict[str, Any]:
    name, _, kind = part.partition(" ")
    data = copy.deepcopy(PARTS.get(name, PARTS["trained"]))
    if kind:
        data["decide"] = {"kind": kind} | DECISIONS[kind]
    if mode != "full" and key.startswith("mode."):
        data["modes"][mode] = {} if mode == "gpu" else {"tokens": 128}
    return {"title": "Width", "parts": [data | copy.deepcopy(_of(WHERE, part, mode, key) or {})]}


def _of(table: dict[str, Any], part: str, mode: str, key: str) -> Any:
    """The entry of a key: that of its part, its rule or its mode where there is one."""
    names = (f"{name} {key}" for name in (*part.split(), mode))
    return next((table[name] for name in names if name in table), table.get(key))


def _changed(data: dict[str, Any], part: str, path: str, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(data)
    place = data if part == "experiment" else data["parts"][0]
    above, _, last = path.partition(" ")
    if last:
        put(place, [f"{above}={json.dumps({**({'d_model': 16} if last != 'spec' else {}), last: value})}"])
    else:
        put(place, [f"{path}={json.dumps(value)}"])
    return data


KEYS = [pytest.param(*one, id=" ".join(one[:3])) for one in _keys()]


def tried(data: dict[str, Any], part: str, mode: str, path: str, key: str, folder: Path) -> str:
    """Whether another value of a key is refused with its name, changes something, or is ignored."""
    value = _of(CHANGES, part, mode, key)
    try:
        changed = observed(folder, _changed(data, part, path, value), mode)
    except ArchetypeError as error:
        words = [word for word in re.split(r"[. ]", path) if word not in ("modes", *MODES)]
        assert any(word in str(error) for word in words) or key == "is_calibration", error
        return "refused"
    return "changed" if changed != observed(folder, data, mode) else "ignored"


@pytest.mark.parametrize(("part", "mode", "path", "key"), every(20, KEYS))
def test_a_key_changes_what_is_run_or_said_or_is_refused(
    part: str, mode: str, path: str, key: str, tmp_path: Path
) -> None:
    if _of(UNSEEN, part, mode, key):
        return
    expected = "refused" if _of(REFUSED, part, mode, key) else "changed"
    assert tried(_experiment(part, mode, key), part, mode, path, key, tmp_path) == expected
    if _of(WHERE, part, mode, key):  # without what lets it be seen it is refused, or seen all the same
        assert tried(_experiment(part, mode, ""), part, mode, path, key, tmp_path) != "ignored"


def test_every_key_has_another_value_or_a_reason() -> None:
    named = ((key, _of(CHANGES | UNSEEN, part, mode, key)) for part, mode, _, key in _keys())
    missing = {key for key, value in named if value is None}
    assert not missing, f"say in CHANGES what to give them: {sorted(missing)}"


def test_the_same_experiment_does_the_same(tmp_path: Path) -> None:
    """The control: what is compared has nothing that differs by itself."""
    data = _experiment("trained", "full", "")
    assert observed(tmp_path, data, "full") == observed(tmp_path, copy.deepcopy(data), "full")
