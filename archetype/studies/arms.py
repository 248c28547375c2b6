"""Arms of an experiment part: a model, a recipe and a metric, matched to the control arm."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from archetype.convert.source import open_spec
from archetype.errors import SpecError, errors_at, nearest
from archetype.estimate.match import match
from archetype.estimate.report import cost_report
from archetype.io.yaml import read_mapping
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.spec.edit import assign, put
from archetype.studies.corpora import StudyData
from archetype.studies.settings import Match, Metric, Source
from archetype.studies.start import Start, start_from
from archetype.surgery.layers import assigned
from archetype.training.recipe import Recipe
from archetype.training.schedules import WarmUp
from archetype.training.synthetic import SyntheticData

NUM_EVALUATIONS, NUM_CHECKPOINTS, EVALUATE_BATCHES = 10, 4, 8
NOT_OURS = ("spec", "data", "seed", "steps", "version")  # fields of a recipe that the study sets
SHARED = {"recipe.": NOT_OURS, "metric.": ("name", "better", "task", "limit")}  # what no arm can change
WARMUP_SHARE = 0.1
ROUNDING = 0.05  # share of the control's tokens by which whole batches of another size may differ


@dataclass(frozen=True)
class Arm:
    """Arm of an experiment part.

    Attributes:
        recipe: training recipe with model, data and steps, but without the seed.
        seed_offset: added to every seed.
        solved: one line that describes the size changed to match the control.
        start: trained weights that the arm starts from (absent: random ones).
    """

    name: str
    spec: ModelSpec
    recipe: Recipe
    metric: Metric
    data: StudyData
    seed_offset: int = 0
    solved: str = ""
    start: Start | None = None

    @property
    def is_trained(self) -> bool:
        """Whether the arm is trained, rather than evaluated as it is."""
        return self.start is None or self.start.is_trained

    @property
    def tokens(self) -> int:
        steps = self.recipe.steps if self.is_trained else 0
        return steps * self.recipe.batch_size * row_length(self.recipe, self.spec)

    def changed(self, values: Mapping[str, Any]) -> "Arm":
        """Return a copy of the arm with the given recipe fields and spec.PATH fields replaced."""
        if not self.is_trained:  # no setting of the training applies to it
            return self
        spec = assign(self.spec, _assignments({p[5:]: v for p, v in values.items() if p.startswith("spec.")}))
        data = self.recipe.dump(full=True)
        put(data, _assignments({p: v for p, v in values.items() if not p.startswith("spec.")}))
        return replace(self, spec=spec, recipe=Recipe.parse(data | {"spec": spec.dump()}))


def row_length(recipe: Recipe, spec: ModelSpec) -> int:
    """Return the length in tokens of a training sequence (synthetic data: of the longest example)."""
    if isinstance(recipe.data, SyntheticData):
        return recipe.data.row_length
    return recipe.sequence_length or spec.context_length


def build_arms(
    base: Source | None,
    changes: Mapping[str, Mapping[str, Any]],
    recipe: Source,
    data: StudyData,
    metric: Metric,
    tokens: int | None,
    matched: Match,
) -> list[Arm]:
    """Build all arms of a part, and match them to the control.

    Args:
        changes: changes to the base model for each arm name; the first arm is the control.
        tokens: training tokens of each run (default: from the recipe's steps).
        matched: quantities that must agree.

    Raises:
        SpecError: a change is invalid, or an arm cannot be matched.
    """
    recipe = read_recipe_source(recipe)
    arms: list[Arm] = []
    for name, change in changes.items():
        with errors_at(f"arms.{name}"):
            # each arm changes the base, not the control
            arms.append(_arm(name, base, change, recipe, data, metric, tokens))
    control = arms[0]
    arms = [control, *(_matched(arm, control, matched) for arm in arms[1:])]
    _check_matched(arms, matched)
    return arms


def read_recipe_source(recipe: Source) -> dict[str, Any]:
    """Read a recipe as plain data, without the fields that a study sets."""
    from pathlib import Path

    data = dict(recipe) if isinstance(recipe, dict) else read_mapping(Path(recipe))
    return {key: value for key, value in data.items() if key not in NOT_OURS or key == "steps"}


def _arm(
    name: str,
    base: Source | None,
    change: Mapping[str, Any],
    recipe: Mapping[str, Any],
    data: StudyData,
    metric: Metric,
    tokens: int | None,
) -> Arm:
    # a change without a prefix is a field of the model
    parts: dict[str, dict[str, Any]] = {"recipe.": {}, "data.": {}, "metric.": {}, "": {}}
    others: dict[str, Any] = {"spec": base, "seed_offset": 0, "from": None, "as_is": False}
    for path, value in change.items():
        if path in others:
            others[path] = value
        else:
            prefix = next(prefix for prefix in parts if path.startswith(prefix))
            parts[prefix][path.removeprefix(prefix)] = value
    if data.test and parts["data."]:  # guesses, losses and the test count the tokens of one text
        raise SpecError(f"data.{next(iter(parts['data.']))}", "is the same for all arms of a text", "remove it")
    for prefix, fields in SHARED.items():
        if clash := [path for path in parts[prefix] if path.partition(".")[0] in fields]:
            raise SpecError(f"{prefix}{clash[0]}", "is the same for all arms", "remove it")
    start = None if others["from"] is None else start_from(str(others["from"]), not others["as_is"])
    if others["as_is"] not in (True, False) or (others["as_is"] and start is None):
        raise SpecError("as_is", "needs weights to evaluate, and true", "write as_is: true and from: FOLDER")
    own = others["spec"] if start is None or "spec" in change else start.folder
    spec = (assign if start is None else assigned)(open_spec(own), _assignments(parts[""]))
    # deep copy: `put` changes nested mappings, which all arms share
    values: dict[str, Any] = json.loads(json.dumps(dict(recipe)))
    put(values, _assignments(parts["recipe."]))
    values["data"] = data.recipe | parts["data."]
    parsed = Recipe.parse(values | {"spec": spec.dump(), "dtype": values.get("dtype", "float32")})
    if isinstance(parsed.data, SyntheticData):
        data = replace(data, baseline=parsed.data.baseline())
    # rounded up, so that no arm trains on fewer tokens
    steps = parsed.steps if tokens is None else math.ceil(tokens / (parsed.batch_size * row_length(parsed, spec)))
    settings: dict[str, Any] = {"steps": steps}
    if "evaluate_every" not in values:
        settings["evaluate_every"] = max(1, steps // NUM_EVALUATIONS)
    if "evaluate_batches" not in values:
        settings["evaluate_batches"] = EVALUATE_BATCHES
    if "checkpoint_every" not in values:
        settings["checkpoint_every"] = max(1, steps // NUM_CHECKPOINTS)
    schedule = parsed.schedule
    # a share of the steps, since the number of steps depends on the mode
    if isinstance(schedule, WarmUp) and "warmup_steps" not in (values.get("schedule") or {}):
        settings["schedule"] = schedule.replace(warmup_steps=round(steps * WARMUP_SHARE))
    changed = metric.dump()
    put(changed, _assignments(parts["metric."]))
    metric = Metric.parse(changed)
    check_metric(metric, is_text=bool(data.test))
    settings |= (
        {"teacher": None, "stages": ()}
        if others["as_is"]
        else {"teacher": parsed.teacher and parsed.teacher.located(None)}
    )
    return Arm(name, spec, parsed.replace(**settings), metric, data, int(others["seed_offset"]), start=start)


def check_metric(metric: Metric, is_text: bool) -> None:
    """Refuse a metric that the data do not have."""
    if metric.name in ("test.recall", "test.task") and not is_text:
        raise SpecError("metric.name", f"{metric.name} needs text, but the data are generated examples", "use accuracy")
    of_windows = [name for name in ("length", "positions", "skip") if getattr(metric, name)]
    if not is_text and of_windows:
        raise SpecError(f"metric.{of_windows[0]}", "needs text, but the data are generated examples", "remove it")
    if is_text and metric.data:
        raise SpecError("metric.data", "needs generated examples, but the data are text", "remove it")
    if of_windows == ["skip"]:
        raise SpecError(
            "metric.skip", "has no effect without positions or length", "add positions or length, or remove skip"
        )


def _assignments(values: Mapping[str, Any]) -> list[str]:
    # `archetype set PATH=VALUE` reads values as YAML, of which JSON is a subset
    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


def _matched(arm: Arm, control: Arm, matched: Match) -> Arm:
    # one size for all arms, or one per arm
    free = matched.free if isinstance(matched.free, str | None) else matched.free.get(arm.name)
    if free is None:
        return arm
    with errors_at(f"match.free: {arm.name}"):
        result = match(arm.spec, control.spec, matched.solve, free)
    solved = f"{result.path}: {result.before} -> {result.after}, for {matched.solve}"
    return replace(arm, spec=result.spec, recipe=arm.recipe.replace(spec=result.spec.dump()), solved=solved)


def quantities(arm: Arm) -> dict[str, float]:
    """Return the parameters, FLOPs per token, state bytes and training tokens of an arm."""
    length = row_length(arm.recipe, arm.spec)
    report = cost_report(arm.spec, batch=1, length=length, dtype="float32")
    parameters = report.parameters
    return {
        "parameters": parameters["total"],
        "non_embedding": parameters["total"] - parameters["embedding"],
        "active": parameters["active"],
        "flops_per_token": report.flops["forward"] / length,
        "training_flops_per_token": report.flops["train"] / length,
        "state_bytes": 0 if isinstance(arm.spec, EncoderDecoder) else report.state["bytes"],
        "tokens": arm.tokens,
    }


def _check_matched(arms: Sequence[Arm], matched: Match) -> None:
    control, *others = (quantities(arm) for arm in arms)
    limits = {"params": "non_embedding", "flops": "flops_per_token", "state": "state_bytes"}
    for arm, values in zip(arms[1:], others, strict=True):
        # rounded up to whole batches: other batch sizes or row lengths may add a few tokens
        is_trained = arm.is_trained and arms[0].is_trained
        if is_trained and abs(values["tokens"] - control["tokens"]) > ROUNDING * control["tokens"]:
            cause = f"trains on {values['tokens']:,.0f} tokens, but the control on {control['tokens']:,.0f}"
            raise SpecError(f"arms.{arm.name}", cause, "use more tokens, or batches of equally many tokens")
        for field, name in limits.items():
            share: float | None = getattr(matched, field)
            # a control without state (0 bytes) must not divide by zero
            off = abs(values[name] - control[name]) / max(1.0, control[name])
            if share is not None and off > share:
                cause = f"{name} is {values[name]:,.0f}, but {control[name]:,.0f} in the control ({off:.2%} apart)"
                raise SpecError(f"arms.{arm.name}", cause, f"name a size in match.free, or raise match.{field}")


def check_grid(arm: Arm, grid: Mapping[str, Sequence[Any]]) -> None:
    """Check every path and value of a grid.

    Raises:
        SpecError: a path or value is invalid; the message names the path.
    """
    for path, values in grid.items():
        field = path.partition(".")[0]
        if field not in Recipe.model_fields:
            raise SpecError(f"tune.grid.{path}", "is not a recipe field", nearest(field, Recipe.model_fields))
        if field in NOT_OURS and not path.startswith(("spec.", "data.")):
            raise SpecError(f"tune.grid.{path}", "is the same for all trials", "remove it")
        for value in values:
            with errors_at("tune.grid"):
                arm.changed({path: value})
