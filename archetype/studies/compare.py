"""An experiment from Python: what `archetype compare run` does, in this process and with its parts."""

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
    """Make every run of an experiment that is not there yet, and return its outcome.

    Args:
        experiment: a file, or its content as plain data.
        mode: how much is run.
        store: the folder of all runs (absent: ARCHETYPE_STUDIES, or in the cache).
        data_dir: the folder of corpora.

    Returns:
        Plain data, as the JSON beside a report has it; `archetype.studies.report.summary_text` writes it as text.

    Raises:
        ArchetypeError: the experiment is wrong, a corpus is missing, or a run failed.
    """
    parsed = Experiment.parse(experiment) if isinstance(experiment, Mapping) else read_experiment(Path(experiment))
    study = Study(parsed, mode, Path(data_dir).absolute(), Store(None if store is None else Path(store)))
    study.run(engine("here", 1))
    return study.outcome()
