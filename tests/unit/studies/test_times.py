"""A plan's time is the sum of what a run does, and a report shows beside it what the runs took."""

import itertools
import json
from pathlib import Path

import pytest

from archetype.io.files import read_json
from archetype.studies import study as studies
from archetype.studies.execute import Stopped
from archetype.studies.report import markdown, plan_text, summary_text
from archetype.studies.run_time import PROBE_BYTES, PROBE_STEPS, RunTime, time_of_run
from archetype.studies.spent import Spent
from archetype.studies.store import state_of
from archetype.studies.sweep import engine
from archetype.studies.times import ALL, PAIRS, REST, TRIALS, Probes, promised, times_table
from tests.unit.studies.small import BASE, RECIPE, study, trained
from tests.unit.studies.test_scaling_and_search import law_part

GRID = {"grid": {"optimizer.learning_rate": [0.01, 0.02]}, "extend": 0}
QUICK = {"quick": {"tokens": 64, "tune": GRID}, "full": {"tokens": 192}}


class Clock:
    """A clock that goes on by a busy second at each look, which takes three on the wall."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> Spent:
        self.looks += 1
        return Spent(3.0 * self.looks, float(self.looks))


def test_a_run_takes_what_its_parts_take(tmp_path: Path) -> None:
    one, clock = study(tmp_path, "full", trained()), Clock()
    arm = one.trained["width"].arms["a"]
    measured = time_of_run(arm, one.store, clock)
    assert (measured.step, measured.warm_up, measured.evaluation, measured.reading) == (1, 0, 1, 1)
    assert (measured.checkpoint, measured.writing, measured.test, measured.load) == (1, 1, 1, 3)
    assert measured.probe == clock.looks - 1 and measured.probe > PROBE_STEPS
    recipe = arm.recipe.replace(steps=100, evaluate_every=30, checkpoint_every=40)
    assert RunTime(1, 2, 3, 4, 5, 6, 7, 8).parts(recipe) == {
        "training": 100 + 4, "validation": 4 * 2 + 5, "test": 8, "reading": 3, "writing": 3 * 6 + 7,
    }  # fmt: skip
    assert RunTime(1, 2, 3, 4, 5, 6, 7, 8).of(recipe, is_tested=False) == 104 + 13 + 3 + 25
    assert not (one.store.folder / "runs").exists()


def test_evaluations_are_counted_by_what_they_read(tmp_path: Path) -> None:
    """The probe measures on a piece of the texts; a run is counted on all of them."""
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * (PROBE_BYTES // 2))
    base = BASE | {"vocab_size": 256}
    part = trained(data=str(tmp_path / "text.txt"), base=base, recipe=RECIPE | {"evaluate_batches": 2})
    one = study(tmp_path, "full", part)
    arm = one.trained["width"].arms["a"]
    measured = time_of_run(arm, one.store, Clock())
    size = len((one.store.folder / arm.data.test).read_text())
    assert size > 3 * PROBE_BYTES or measured.test == 1
    assert measured.last_evaluation > measured.evaluation == 1


def test_a_plan_counts_each_run_once_and_each_process_too(tmp_path: Path) -> None:
    """Parts that share their runs take no longer than one; a process has to start, and its first run takes longer."""
    probes: list[float] = []

    def probe(arm: object, store: object) -> RunTime:
        probes.append(10.0 if probes else 16.0)
        return RunTime(1.0, test=2.0, load=2.0, probe=probes[-1])

    one = study(tmp_path, "full", trained(tune=GRID), trained(id="again", tune=GRID))
    time_of = Probes(one.store, probe)  # type: ignore[arg-type]
    planned = [run for part in one.trained.values() for run in part.planned_runs()]
    promise = promised(planned, time_of, 1, lambda: Spent(0.0, time_of.busy + 5.0))
    steps, runs = 6, 4
    assert probes == [16.0, 10.0, 10.0] and time_of.first == 6.0  # once more for the first, once for the other arm
    assert promise["stages"] == {
        TRIALS: {"runs": runs, "busy": runs * steps + 6.0, "wall": 2 * (runs * steps + 6.0)},
        PAIRS: {"runs": runs, "busy": runs * (steps + 2.0), "wall": 2 * runs * (steps + 2.0)},
        REST: {"runs": 0, "busy": 5.0, "wall": 10.0},
    }
    assert sum(promise["parts"].values()) == sum(stage["busy"] for stage in promise["stages"].values())
    two = promised(planned, time_of, 2, lambda: Spent(0.0, time_of.busy + 5.0))
    assert two["stages"][REST]["busy"] == 5.0 * (1 + 2 * 2) and two["stages"][TRIALS]["busy"] == runs * steps + 2 * 6.0
    assert sum(two["parts"].values()) == sum(stage["busy"] for stage in two["stages"].values())


def test_a_report_has_promised_beside_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "time_of_run", lambda arm, store: RunTime(60.0))
    one = study(tmp_path, "quick", trained(tune=GRID, modes=QUICK))
    plan = one.plan()
    text = plan_text(plan)
    line = next(line for line in text.splitlines() if line.startswith("processor time "))
    assert ": training 16.0 minutes" in line and line.endswith("with 1 worker at the present load")
    one = study(tmp_path, "quick", trained(tune=GRID, modes=QUICK))
    one.run(engine("here", 1))
    outcome = one.outcome()
    stages = outcome["times"]
    assert [*stages] == [TRIALS, PAIRS, REST, ALL] and stages[TRIALS]["promised"]["busy"] == 4 * 2 * 60
    done = [read_json(file)["spent"]["busy"] for file in one.store.folder.glob("runs/*/state.done")]
    assert stages[TRIALS]["taken"]["busy"] + stages[PAIRS]["taken"]["busy"] == pytest.approx(sum(done))
    assert stages[ALL]["taken"]["busy"] == pytest.approx(sum(done) + stages[REST]["taken"]["busy"])
    assert "processors, promised" in summary_text(outcome) and "## Time" in markdown(outcome)
    again = study(tmp_path, "quick", trained(tune=GRID, modes=QUICK))
    assert json.dumps(again.outcome()["times"]) == json.dumps(stages)  # no runs, and nothing is added
    older = next(one.store.folder.glob("runs/*/state.done"))
    older.write_text(json.dumps({key: value for key, value in read_json(older).items() if key != "spent"}))
    table = times_table(again.outcome()["times"])
    assert table is not None and any(row[3] == "" for row in table[1])


def test_a_run_that_was_stopped_counts_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = study(tmp_path, "full", trained())
    clock = itertools.count()
    monkeypatch.setattr("archetype.studies.execute.clock", lambda: Spent(float(next(clock)), float(next(clock))))
    key = one.store.add(one.needed()[0])
    folder = one.store.run_folder(key)

    def stop() -> None:
        monkeypatch.undo()
        import os
        import signal

        os.kill(os.getpid(), signal.SIGTERM)

    from archetype.studies.execute import execute

    with pytest.raises(Stopped):
        execute(one.store, key, look=stop)
    first = read_json(folder / "state.pending")["spent"]
    execute(one.store, key)
    assert state_of(folder) == "done" and read_json(folder / "state.done")["spent"]["wall"] > first["wall"]


def test_status_counts_the_stages_of_a_law(tmp_path: Path) -> None:
    one = study(tmp_path, "full", law_part())
    (stages,) = one.status()["stages"].values()
    assert all(done == 0 < total for done, total in stages.values())
    engine("here", 1).run(one.store, [one.store.add(request) for request in one.needed()[:1]])
    (after,) = one.status()["stages"].values()
    assert sum(done for done, _ in after.values()) > 0 and after.keys() == stages.keys()
