"""The metrics of a run as a list of runs has them: what is newest, and what is best."""

import json
import math
from pathlib import Path

from archetype.runs.listing import MetricsFile


def test_the_best_value_is_the_least_that_is_a_number(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(file)
    assert metrics.best("loss") is None and metrics.last("loss") is None
    for step, loss in enumerate([5.0, 3.0, math.nan, 4.0], 1):
        with file.open("a") as stream:
            stream.write(json.dumps({"step": step, "loss": loss}) + "\n")
    metrics.refresh()
    assert (metrics.best("loss"), metrics.last("loss"), metrics.best("accuracy")) == (3.0, 4.0, None)
    file.write_text(json.dumps({"step": 1, "loss": math.nan}) + "\n")
    metrics.refresh()
    assert metrics.best("loss") is None and metrics.last("loss") is None
