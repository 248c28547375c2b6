"""Write an experiment that compares given models with default choices, and explain each choice."""

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from archetype.convert.source import open_spec
from archetype.data.corpus import encode
from archetype.errors import SpecError, enumeration
from archetype.io import atomic
from archetype.io.text import read_text
from archetype.io.yaml import mapping_to_yaml, read_mapping, with_schema_line
from archetype.machine.cpu_info import num_cores
from archetype.models.spec import ModelSpec, leaves_vocabulary_open
from archetype.spec.base import fingerprint
from archetype.studies.arms import NUM_EVALUATIONS, Arm
from archetype.studies.calibration import read_calibration
from archetype.studies.evidence import LEAST_PAIRS
from archetype.studies.experiment import Experiment, read_experiment
from archetype.studies.parts import TrainedPart
from archetype.studies.recall import NUM_PAIRS
from archetype.studies.run_time import time_of_run
from archetype.studies.store import Store
from archetype.studies.study import NEEDS_CALIBRATION
from archetype.studies.trained import TrainedStudy
from archetype.table import Table, quantity
from archetype.tokenizers import open_tokenizer
from archetype.training.defaults import recipe_for
from archetype.training.learning_rate import suitable_rate
from archetype.training.optimizers import AdamW

PART = "models"
BYTES = 256  # vocabulary of all models: all read the same tokens, whatever their tokenizers
TOKENS_PER_STEP = 2048
MAX_LENGTH = 256
MARGIN = "1%"
RATES = (1 / 3, 1.0, 3.0)  # multiples of the default learning rate
SPARE_RUNS = 1  # per arm, in case the best rate is at the grid's edge
MIN_STEPS, MAX_EPOCHS = 50, 4  # beyond four epochs a text adds little (Muennighoff 2023)


@dataclass(frozen=True)
class ChosenExperiment:
    """Generated experiment file, with the reason for each choice by topic."""

    file: Path
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        return str(Table(("", ""), [*self.reasons.items(), ("experiment", str(self.file))], text_columns=2))


def choose_experiment(
    sources: Sequence[str],
    data: str,
    minutes: float,
    workers: int,
    data_folder: Path,
    store: Store,
    from_weights: bool = False,
) -> ChosenExperiment:
    """Write an experiment file that compares models. The first model is the control.

    With `from_weights`, all start from their weights, and the first, their donor, is evaluated as it is. It is also
    trained like the others, which tells what the training alone does.

    The same arguments give the same file, so that repeating the command resumes interrupted runs.

    Args:
        sources: model specifications: presets, files or folders.
        data: a text file, a folder of text files, or the name of a corpus.
        minutes: budget for all runs together.
        workers: parallel processes.

    Raises:
        ArchetypeError: there is only one model, one is not a language model, or the time is too short.
    """
    named = dict(zip(_names(sources), sources, strict=True))
    if len(named) < 2:
        raise SpecError("MODEL...", "names only one model", "name a second model")
    data = str(Path(data).absolute()) if Path(data).exists() else data
    if from_weights:
        part_of = partial(_part_of_weights, named, data)
    else:
        part_of = partial(_part, {name: _comparable(source) for name, source in named.items()}, data)
    # one step of tokens for now; the number is chosen below, from the measured speed of these arms
    study = TrainedStudy(part_of(TOKENS_PER_STEP), "full", data_folder, store)
    # without the number of tokens: it depends on the measured speed, and would start a new file each time
    settings = f"{fingerprint(study.part)} {study.data[0].sha256} {minutes:g} {workers}"
    digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
    file = store.folder / "experiments" / f"{'-'.join(named)[:60]}-{digest}.yaml"
    if file.is_file():
        (part,) = read_experiment(file).parts
        assert isinstance(part, TrainedPart) and part.modes.full.tokens is not None
        return ChosenExperiment(file, _reasons(study, part, f"{part.modes.full.tokens:,} a run, as chosen before"))
    tokens, why = _tokens(study, minutes, workers)
    part = part_of(tokens)
    experiment = Experiment(title=f"{enumeration(named)} on {Path(data).stem}", parts=(part,))
    atomic.make_folder(file.parent)
    atomic.write_bytes(file, with_schema_line(mapping_to_yaml(experiment.dump()), "experiment").encode())
    return ChosenExperiment(file, _reasons(study, part, f"{tokens:,} a run: {why}"))


def _names(sources: Sequence[str]) -> list[str]:
    names: list[str] = []
    for source in sources:
        path = Path(source)
        # files and folders by their name, presets and hub models by theirs
        name = path.stem if path.is_file() else path.resolve().name if path.is_dir() else source.replace("/", "-")
        # arms need distinct names
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def _comparable(source: str) -> ModelSpec:
    data: Any = source
    if Path(source).is_file() and Path(source).suffix in (".yaml", ".yml", ".json"):
        data = read_mapping(Path(source))
        if "parts" in data:
            raise SpecError(source, "is an experiment, not a model", f"use `archetype compare run {source}`")
    is_open = leaves_vocabulary_open(data)
    # a file may leave the size of the vocabulary open until its tokenizer is known
    spec = open_spec({"vocab_size": BYTES, **data} if is_open else source)
    if not spec.is_causal or spec.reads_source or spec.reads_images or not hasattr(spec, "vocab_size"):
        remedy = "write an experiment file with suitable data; see docs/guide/studies.md"
        raise SpecError(source, "does not predict the next byte of a text", remedy)
    return spec.replace(vocab_size=BYTES)


def _part(specs: Mapping[str, ModelSpec], data: str, tokens: int) -> TrainedPart:
    control = next(iter(specs))
    usual = recipe_for(specs[control].dump(), {"kind": "corpus", "text": [data]}, 0).optimizer.learning_rate
    part = {
        "says": f"Each other model is better than {control}",
        "base": specs[control].dump(),
        "arms": {name: {} if name == control else {"spec": spec.dump()} for name, spec in specs.items()},
        "decide": {"kind": "difference", "margin": MARGIN},
    }
    return _with_recipe(part, [*specs.values()], usual, data, tokens)


def _part_of_weights(sources: Mapping[str, str], data: str, tokens: int) -> TrainedPart:
    control, *others = sources
    folders = {name: str(Path(source).expanduser().absolute()) for name, source in sources.items()}
    specs = [open_spec(folder) for folder in folders.values()]
    length = min(MAX_LENGTH, *(spec.context_length for spec in specs))
    further = f"{control}-trained" + "-further" * (f"{control}-trained" in others)
    part = {
        "says": f"Each other model is as good as {control}",
        "arms": {
            control: {"from": folders[control], "as_is": True},
            further: {"from": folders[control]},
            **{name: {"from": folders[name]} for name in others},
        },
        "retained": [{"name": "test.recall", "better": "higher", "length": length}] if length >= 4 * NUM_PAIRS else [],
        "decide": {"kind": "equivalence", "margin": MARGIN},
    }
    return _with_recipe(part, specs, suitable_rate(AdamW, specs[0], is_trained=True)[0], data, tokens)


def _with_recipe(part: dict[str, Any], specs: Sequence[ModelSpec], usual: float, data: str, tokens: int) -> TrainedPart:
    length = min(MAX_LENGTH, *(spec.context_length for spec in specs))
    part |= {
        "id": PART,
        "type": "trained",
        "data": data,
        "recipe": {
            "batch_size": max(1, TOKENS_PER_STEP // length),
            "sequence_length": length,
            "optimizer": {"kind": "adamw", "learning_rate": usual},
            "schedule": {"kind": "wsd"},
        },
        "tune": {"grid": {"optimizer.learning_rate": [float(f"{usual * share:.1g}") for share in RATES]}},
        "seeds": LEAST_PAIRS,
        "modes": {"full": {"tokens": tokens}},
    }
    return TrainedPart.parse(part)


def _runs(study: TrainedStudy, arm: Arm) -> int:
    # trials, pairs, and spare runs for a longer grid; an arm without training has one run, whatever the seed
    return len(RATES) + study.num_seeds + SPARE_RUNS if arm.is_trained else 1


def _tokens(study: TrainedStudy, minutes: float, workers: int) -> tuple[int, str]:
    """Return the tokens per run that fit the time budget and the text, and the reason."""
    arms = [*study.arms.values()]
    counts = [_runs(study, arm) for arm in arms]
    times = [time_of_run(arm, study.store) for arm in arms]
    # all phases other than steps: as many evaluations as in a full run, but few steps
    whole = [arm.recipe.replace(steps=NUM_EVALUATIONS, evaluate_every=1) for arm in arms]
    fixed = [time.load * (time.of(run) - run.steps * time.step) for time, run in zip(times, whole, strict=True)]
    rest = sum(map(operator.mul, counts, fixed))
    seconds = sum(count * time.load * time.step for count, time in zip(counts, times, strict=True))
    at_once = min(workers, num_cores())
    # CPU seconds in the budget without the fixed phases, over the seconds that one more step of every run takes
    steps = max(minutes * 60 * at_once - rest, 0.0) / seconds
    if steps < MIN_STEPS:
        cause = f"{minutes:g} minutes leave {steps:.0f} steps for each of {sum(counts)} runs"
        raise SpecError("--minutes", cause, f"use {math.ceil((rest + MIN_STEPS * seconds) / 60 / at_once)} or more")
    trained = next(arm for arm in arms if arm.is_trained)
    by_time = steps * tokens_per_step(trained)
    by_text = MAX_EPOCHS * _num_tokens(study.store.folder, trained)
    if by_time > by_text:
        return _rounded(by_text), f"{MAX_EPOCHS} times the text, which takes less than --minutes {minutes:g}"
    of_a_step = sum(count * tokens_per_step(arm) for count, arm in zip(counts, arms, strict=True))
    speed = quantity(of_a_step / seconds * at_once).strip()
    return _rounded(by_time), f"about {minutes:g} minutes here for all {sum(counts)}, at {speed} tokens/s"


def _num_tokens(store: Path, arm: Arm) -> int:
    file = store / arm.data.recipe["text"][0]
    if arm.start is None:  # bytes
        return int(file.stat().st_size)
    return len(encode(open_tokenizer(Path(arm.data.recipe["tokenizer"])), read_text(file)))


def tokens_per_step(arm: Arm) -> int:
    return arm.tokens // arm.recipe.steps


def _rounded(tokens: float) -> int:
    # two digits: the measured time is not more precise
    unit = 10 ** max(0, int(math.log10(tokens)) - 1)
    return max(1, int(tokens // unit * unit))


def _reasons(study: TrainedStudy, part: TrainedPart, tokens: str) -> dict[str, str]:
    control, *others = part.arms
    assert part.tune is not None
    rates = ", ".join(f"{rate:g}" for rate in part.tune.grid["optimizer.learning_rate"])
    starts = study.arms[control].start is not None
    how = "evaluated as it is, and compared with it, trained further" if starts else "compared with it as they are"
    tokens_of = f"with the tokenizer of {control}" if starts else "as bytes"
    reasons = {
        "control": f"{control}, the first model; {how}: {', '.join(others)}",
        "data": f"{study.data[0].name}, {tokens_of}, so that all models read the same tokens",
        "tokens": tokens,
        "rates": f"{rates}: the default of {control}, a third and three times of it, tried on every model",
        "seeds": f"{part.seeds} pairs; with fewer pairs a sign-flip test cannot reach p < 0.05",
        "margin": f"{MARGIN} of {control}; smaller differences count as no difference",
    }
    calibration = read_calibration(study.store)
    if not (calibration and calibration["passed"]):
        reasons["verdict"] = NEEDS_CALIBRATION
    return reasons
