"""Expected and actual time of each stage of a study, as wall-clock and CPU time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from archetype.io import atomic
from archetype.io.files import read_json
from archetype.machine.cpu_info import num_cores
from archetype.spec.base import fingerprint
from archetype.studies.arms import Arm
from archetype.studies.run_time import RunTime
from archetype.studies.spent import Spent, clock
from archetype.studies.store import RunRequest, Store, state_of
from archetype.table import Table

TRIALS, PAIRS, REST, ALL = "trials", "pairs", "start-up and report", "all"


class PlannedRun(NamedTuple):
    """Run that a plan counts. Trials skip the test."""

    arm: Arm
    request: RunRequest
    is_trial: bool


class Probes:
    """Measured run times, which equal arms share.

    Attributes:
        busy: CPU seconds that the measurements took.
        first: extra seconds of a process's first run, such as imports.
    """

    def __init__(self, store: Store, time_of_run: Callable[[Arm, Store], RunTime]) -> None:
        self.store, self.time_of_run = store, time_of_run
        self.busy = self.first = 0.0
        self._measured: dict[str, RunTime] = {}

    def __call__(self, arm: Arm) -> RunTime:
        # seed and number of steps do not change the time of a phase
        recipe = arm.recipe.replace(seed=0, steps=1).dump(full=True)
        key = f"{fingerprint(arm.spec)} {recipe} {arm.metric.key} {arm.data.sha256} {arm.start}"
        if key not in self._measured:
            # the first measurement of this process includes imports: measure twice, and keep the difference
            before = [] if self._measured else [self.time_of_run(arm, self.store)]
            measured = self._measured[key] = self.time_of_run(arm, self.store)
            self.busy += sum(run_time.probe for run_time in (*before, measured))
            self.first += sum(max(0.0, run_time.probe - measured.probe) for run_time in before)
        return self._measured[key]


def promised(
    planned: Iterable[PlannedRun], time_of: Probes, workers: int, now: Callable[[], Spent] = clock
) -> dict[str, Any]:
    """Return the expected time of each stage and phase, counting each run once.

    Args:
        now: returns the time that this process has spent; every worker repeats its start-up and reading of data.
    """
    # parts of a study may share runs
    runs = {(run.request.key, run.is_trial): run for run in planned}.values()
    timed = [(run, time_of(run.arm)) for run in runs]
    start_up = max(0.0, now().busy - time_of.busy)
    stages, spent = dict[str, dict[str, float]](), dict[str, float]()
    processes, firsts, load = 1, 0.0, max((time.load for _, time in timed), default=1.0)
    for name, is_trial in ((TRIALS, True), (PAIRS, False)):
        of_stage = [(run, time) for run, time in timed if run.is_trial == is_trial]
        # more workers than cores or runs do not help
        at_once = max(1, min(workers, num_cores(), len(of_stage)))
        busy = wall = 0.0
        for run, time in of_stage:
            for part, seconds in time.parts(run.arm.recipe, not is_trial).items():
                spent[part] = spent.get(part, 0.0) + seconds
                busy, wall = busy + seconds, wall + seconds * time.load / at_once
        if of_stage:
            new = at_once if workers > 1 else int(not stages)  # processes that make their first run in this stage
            firsts, processes = firsts + new * time_of.first, processes + new * (workers > 1)
            busy, wall = busy + new * time_of.first, wall + bool(new) * time_of.first * load
            stages[name] = {"runs": len(of_stage), "busy": busy, "wall": wall}
    busy, at_once = processes * start_up, 1 + len(stages) * (workers > 1)
    stages[REST] = {"runs": 0, "busy": busy, "wall": at_once * start_up * load}
    return {"workers": workers, "stages": stages, "parts": spent | {"start-up": busy + firsts}}


def total(stages: Mapping[str, Mapping[str, float]], kind: str) -> float:
    return sum(stage[kind] for stage in stages.values())


def promise_text(promise: Mapping[str, Any]) -> str:
    stages, workers = promise["stages"], promise["workers"]
    made_of = ", ".join(f"{name} {_text(seconds)}" for name, seconds in promise["parts"].items() if seconds)
    return (
        f"processor time {_text(total(stages, 'busy'))}: {made_of}; wall-clock time {_text(total(stages, 'wall'))}"
        f" with {workers} {'worker' if workers == 1 else 'workers'} at the present load"
    )


def keep_promise(store: Store, name: str, promise: Mapping[str, Any]) -> None:
    """Record the expected time for the report, replacing an earlier record."""
    _change(store, name, {"promised": promise})


def keep_command(store: Store, name: str, spent: Spent) -> None:
    commands = _read(store, name).get("commands", [])
    _change(store, name, {"commands": [*commands, spent.dump()]})


def times(store: Store, name: str, trials: Sequence[RunRequest], pairs: Sequence[RunRequest]) -> dict[str, Any]:
    """Return the expected and actual time of each stage.

    Returns:
        `runs`, `promised` and `taken` of each stage, the last two with `wall` and `busy` seconds; null if no expected
            time was recorded, or a run has no recorded time. Wall time of parallel runs is summed.
    """
    recorded = _read(store, name)
    promise = recorded.get("promised", {}).get("stages", {})
    stages: dict[str, Any] = {}
    for stage, requests in ((TRIALS, trials), (PAIRS, pairs)):
        if keys := dict.fromkeys(request.key for request in requests):
            stages[stage] = {"runs": len(keys), "promised": _promise_of(promise, stage), "taken": _taken(store, keys)}
    commands = [Spent(**command) for command in recorded.get("commands", [])]
    taken = [Spent(**stage["taken"]) for stage in stages.values() if stage["taken"]]
    if commands and len(taken) == len(stages):
        everything = sum(commands, Spent())
        rest = everything.busy - sum(command.busy for command in taken)
        if rest >= 0:  # negative if other commands made some of the runs
            stages[REST] = {"runs": 0, "promised": _promise_of(promise, REST), "taken": {"wall": None, "busy": rest}}
            whole = {kind: total(promise, kind) for kind in ("wall", "busy")} if promise else None
            runs = sum(stage["runs"] for stage in stages.values())
            stages[ALL] = {"runs": runs, "promised": whole, "taken": everything.dump()}
    return stages


def times_table(stages: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """Return headings and rows of expected and actual minutes; None if no stage has a record."""
    if not any(stage["taken"] for stage in stages.values()):
        return None
    rows = [
        [
            name,
            str(stage["runs"] or ""),
            *(_cell(stage[which], kind) for kind in ("busy", "wall") for which in ("promised", "taken")),
        ]
        for name, stage in stages.items()
    ]
    return ["minutes", "runs", "processors, promised", "taken", "clock, promised", "taken"], rows


def times_text(stages: Mapping[str, Any]) -> str:
    table = times_table(stages)
    return str(Table(*table)) if table else ""


def _cell(spent: Mapping[str, float | None] | None, kind: str) -> str:
    seconds = spent[kind] if spent else None
    return "" if seconds is None else f"{seconds / 60:.2f}"


def _text(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"


def _promise_of(promise: Mapping[str, Any], stage: str) -> dict[str, float] | None:
    return {kind: promise[stage][kind] for kind in ("wall", "busy")} if stage in promise else None


def _taken(store: Store, keys: Iterable[str]) -> dict[str, float] | None:
    taken = Spent()
    for key in keys:
        folder = store.run_folder(key)
        spent = read_json(folder / "state.done").get("spent") if state_of(folder) == "done" else None
        if spent is None:
            return None
        taken += Spent(**spent)
    return taken.dump()


def _file(store: Store, name: str) -> Path:
    return store.folder / "times" / f"{name}.json"


def _read(store: Store, name: str) -> dict[str, Any]:
    return dict(read_json(file)) if (file := _file(store, name)).is_file() else {}


def _change(store: Store, name: str, changed: Mapping[str, Any]) -> None:
    atomic.make_folder(_file(store, name).parent)
    atomic.write_json(_file(store, name), {**_read(store, name), **changed})
