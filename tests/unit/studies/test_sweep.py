"""Runs are made once, whoever is killed: the same answers as one process gives that nobody disturbs."""

import contextlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from archetype.errors import DataError
from archetype.io.files import read_json
from archetype.studies import execute as execution
from archetype.studies import store as stores
from archetype.studies import sweep
from archetype.studies.execute import execute
from archetype.studies.store import Store, state_of
from archetype.studies.sweep import Here, OnRay, OnSlurm, work_through
from archetype.training import loop
from tests.unit.studies.small import DATA, RECIPE, study, trained

MEASURED = ("has_diverged", "validation", "validation_loss", "validation_accuracy", "predictions")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss curve takes longer than one of these runs."""
    monkeypatch.setattr(loop, "draw_picture", lambda *arguments: None)


def keys_of(folder: Path, **more: Any) -> tuple[Store, list[str]]:
    one = study(folder, "full", trained(**more))
    return one.store, [one.store.add(request) for request in one.trained["width"].needed()]


def answers(store: Store, keys: list[str]) -> dict[str, Any]:
    """All that a run gave, to the last bit: its losses, its measurements, its weights."""
    results = {}
    for key in keys:
        folder = store.run_folder(key)
        about = read_json(folder / "state.done")
        measured = {file.name: read_json(file)["value"] for file in (folder / "measured").glob("[!.]*.json")}
        results[key] = [about[name] for name in MEASURED], measured, (folder / "run" / "model.safetensors").read_bytes()
    return results


def test_runs_are_shared_by_studies_and_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = keys_of(tmp_path, seeds=1)
    assert len(keys) == 2 and [state_of(store.run_folder(key)) for key in keys] == ["pending"] * 2
    Here().run(store, keys)
    first = answers(store, keys)
    monkeypatch.setattr(execution.loop, "run", None)  # from here on nothing is trained
    other = {"metric": {"name": "test.accuracy", "better": "higher"}, "decide": {"kind": "equivalence"}}
    again, same = keys_of(tmp_path, seeds=1, **other)
    assert same == keys and not store.is_complete(keys[0])  # another measurement of the same runs
    Here().run(again, same)
    assert {key: [*values[1]] for key, values in answers(store, keys).items()} != {k: [*v[1]] for k, v in first.items()}
    assert all(store.is_complete(key) for key in keys)


def test_the_key_is_of_what_decides_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, Any]] = [
        {}, {"arms": {"a": {}, "wide": {"d_model": 12}}}, {"modes": {"full": {"tokens": 256}}},
        {"recipe": RECIPE | {"batch_size": 2}}, {"data": DATA | {"num_pairs": 1}},
        {"arms": {"a": {"seed_offset": 9}, "wide": {"d_model": 16}}},
    ]  # fmt: skip
    first, *others = (set(keys_of(tmp_path / str(n), **change)[1]) for n, change in enumerate(changes))
    assert [len(first & keys) for keys in others] == [2, 0, 0, 0, 2]  # a change of one arm leaves the other's runs
    monkeypatch.setattr(stores, "CODE", "numerics of another version")
    assert not first & set(keys_of(tmp_path / "later")[1])


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_were_not(tmp_path: Path) -> None:
    store, keys = keys_of(tmp_path / "quiet", seeds=1)
    work_through(store, keys)
    again, _ = keys_of(tmp_path / "again", seeds=1)
    started = time.monotonic()
    work_through(again, keys)
    seconds = time.monotonic() - started  # of a process that has loaded everything, as each child has
    disturbed, same = keys_of(tmp_path / "disturbed", seeds=1)
    assert same == keys
    generator, kills, deadline = random.Random(0), 0, time.monotonic() + 120
    while not all(map(disturbed.is_complete, keys)) and time.monotonic() < deadline:
        child = os.fork()
        if child == 0:
            try:
                work_through(disturbed, keys)
            finally:
                os._exit(0)
        if kills < 4:
            time.sleep(seconds * generator.uniform(0.05, 0.2))  # so that four come before the end, however fast it is
            os.kill(child, signal.SIGKILL)
            kills += 1
        os.waitpid(child, 0)
    assert answers(disturbed, keys) == answers(store, keys)
    assert kills == 4


@pytest.mark.parametrize("years", [-10, 10])
def test_a_run_of_another_machine_is_left_alone_until_its_heartbeat_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    """By this process's own clock: whatever the times of files say, and whether or not its lock is seen here."""
    store, (key, *_) = keys_of(tmp_path)
    folder, clock = store.run_folder(key), [1000.0]
    monkeypatch.setattr(stores.time, "monotonic", lambda: clock[0])
    stores.set_state(folder, "running", {})

    def beat(count: int) -> None:
        (folder / "heartbeat").write_text(json.dumps({"host": "another", "step": 1, "steps": 6, "beat": count}))
        os.utime(folder / "heartbeat", (at := time.time() + years * 3e7, at))

    for count in range(3):
        beat(count)
        for _ in range(2):
            assert execute(store, key) == "running"
            clock[0] += execution.SECONDS_OF_SILENCE - 1
            beat(count := count + 10)
    clock[0] += 1
    assert execute(store, key) == "running"  # the last beat is new to it
    clock[0] += execution.SECONDS_OF_SILENCE - 1
    assert execute(store, key) == "running"
    clock[0] += 1
    assert execute(store, key) == "done"
    assert stores.heartbeat(folder)["host"] != "another"


def test_a_heart_beats_while_no_step_ends(tmp_path: Path) -> None:
    """Evaluations, tokenizers and measurements may take longer than any step."""
    with stores.Heartbeat(tmp_path, 0.01) as beats:
        beats.step, beats.steps = 3, 6
        first = stores.heartbeat(tmp_path)
        deadline = time.monotonic() + 20
        while stores.heartbeat(tmp_path).get("beat", 0) < first["beat"] + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    last = stores.heartbeat(tmp_path)
    assert last["beat"] >= first["beat"] + 3 and (last["step"], last["steps"]) == (3, 6)
    time.sleep(0.05)
    assert stores.heartbeat(tmp_path) == last and [file.name for file in tmp_path.iterdir()] == ["heartbeat"]


def test_a_run_whose_weights_overflow_has_diverged_and_no_loss(tmp_path: Path) -> None:
    recipe = RECIPE | {"optimizer": {"kind": "sgd", "learning_rate": 1e30}}
    store, keys = keys_of(tmp_path, recipe=recipe)
    Here().run(store, keys[:1])
    folder = store.run_folder(keys[0])
    about = read_json(folder / "state.done")
    (measured,) = (read_json(file)["value"] for file in (folder / "measured").iterdir())
    assert about["has_diverged"] and measured is about["validation_loss"] is None


def test_progress_counts_the_steps_of_the_runs_that_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SECONDS_BETWEEN_COUNTS", 0.0)
    monkeypatch.setattr(stores.Heartbeat.__init__, "__defaults__", (0.001,))
    store, keys = keys_of(tmp_path)
    counts: list[tuple[float, int]] = []
    Here().run(store, keys, lambda done, total: counts.append((done, total)))
    done = [count for count, total in counts]
    assert done == sorted(done) and done[0] < 1 and done[-1] == len(keys) and {total for _, total in counts} == {4}
    assert any(0 < count % 1 < 1 for count in done)


def test_a_run_that_fails_says_why_and_is_tried_again_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, keys = keys_of(tmp_path)

    def broken(*arguments: Any, **more: Any) -> None:
        raise DataError("the disk", "is full", "free some space")

    with monkeypatch.context() as patch:
        patch.setattr(execution.setup, "start", broken)
        with pytest.raises(DataError, match="4 of 4 runs failed, the first: the disk: is full; free some space"):
            Here().run(store, keys)
    assert state_of(store.run_folder(keys[0])) == "failed"
    Here().run(store, keys[:1])
    assert store.is_complete(keys[0])


def test_a_process_that_ends_at_the_same_step_again_and_again_is_given_up(tmp_path: Path) -> None:
    store, keys = keys_of(tmp_path)
    folder = store.run_folder(keys[0])
    for _ in range(execution.MAX_ATTEMPTS):
        execution._count_attempt(folder, execution.Run(folder / "run"))
    assert execute(store, keys[0]) == "failed"
    assert "has ended 5 times at step 0" in store.failure(keys[0])


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    own = [int(pid) for file in Path(f"/proc/{process}/task").glob("*/children") for pid in file.read_text().split()]
    return [pid for child in own for pid in (child, *descendants(child))]


def command_of(process: int) -> str:
    """As `ps` shows it; empty where the process has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_workers_and_drivers_lose_nothing(tmp_path: Path, workers: int) -> None:
    many = {"seeds": 6, "modes": {"full": {"tokens": 192 * 32}}, "recipe": RECIPE | {"checkpoint_every": 16}}
    store, keys = keys_of(tmp_path / "quiet", **many)
    work_through(store, keys)
    disturbed, _ = keys_of(tmp_path / "disturbed", **many)
    generator, kills, deadline = random.Random(1), 0, time.monotonic() + 600
    while not all(map(disturbed.is_complete, keys)) and time.monotonic() < deadline:
        driver = os.fork()
        if driver == 0:
            try:
                Here(workers).run(disturbed, keys)
            finally:
                os._exit(0)
        time.sleep(generator.uniform(2, 12))
        victims = [*descendants(driver), driver]
        for process in generator.sample(victims, generator.randint(1, len(victims))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                kills += 1
        time.sleep(2)
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, signal.SIGKILL if kills % 2 else signal.SIGTERM)
        os.waitpid(driver, 0)
    assert answers(disturbed, keys) == answers(store, keys)
    assert kills > 1


@pytest.mark.slow
def test_a_ray_cluster_whose_workers_are_killed_gives_the_same_answers(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    many = {"seeds": 20, "modes": {"full": {"tokens": 192 * 128}}, "recipe": RECIPE | {"checkpoint_every": 16}}
    store, keys = keys_of(tmp_path / "quiet", **many)
    assert len(keys) == 40
    work_through(store, keys)
    clustered, _ = keys_of(tmp_path / "ray", **many)
    ended, kills = threading.Event(), []

    def kill_one() -> None:
        while not ended.wait(20):
            workers = [pid for pid in descendants(os.getpid()) if "ray::_make_one" in command_of(pid)]
            if workers:
                os.kill(workers[0], signal.SIGKILL)
                kills.append(workers[0])

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        OnRay(2).run(clustered, keys)
    finally:
        ended.set()
        killer.join()
        ray.shutdown()
    assert answers(clustered, keys) == answers(store, keys)
    assert kills


@pytest.mark.slow
def test_jobs_of_submitit_give_the_same_answers(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed")
    store, keys = keys_of(tmp_path / "quiet")
    work_through(store, keys)
    jobs, _ = keys_of(tmp_path / "jobs")
    OnSlurm(cluster="local").run(jobs, keys)
    assert answers(jobs, keys) == answers(store, keys)
