"""Run an experiment in this Python process, as `archetype compare run` does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from archetype.studies.experiment import Experiment, read_experiment
from archetype.studies.store import Store
from archetype.studies.study import Study
from archetype.studies.sweep import engine


def compare(
    experiment: str | Path | Mapping[str, Any],
    mode: Literal["quick", "full", "extended", "gpu"] = "full",
    store: str | Path | None = None,
    data_dir: str | Path = ".",
) -> dict[str, Any]:
    """Train the missing runs of an experiment and return its outcome.

    Args:
        experiment: an experiment file, or an experiment as plain data.
        mode: quick, full, extended or gpu.
        store: folder of all runs (default: ARCHETYPE_STUDIES, or in the cache).
        data_dir: folder of corpora.

    Returns:
        Plain data, as in the JSON of a report; `archetype.studies.report.summary_text` formats it as text.

    Raises:
        ArchetypeError: the experiment is invalid, a corpus is missing, or a run failed.
    """
    parsed = Experiment.parse(experiment) if isinstance(experiment, Mapping) else read_experiment(Path(experiment))
    study = Study(parsed, mode, Path(data_dir).absolute(), Store(None if store is None else Path(store)))
    study.run(engine("here", 1))
    return study.outcome()
