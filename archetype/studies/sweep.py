"""Train many runs: with processes on this machine, on a Ray cluster, or as Slurm jobs."""

import math
import os
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from archetype.distribution import install_command
from archetype.errors import DataError, SpecError, one_line
from archetype.io import atomic
from archetype.machine.time_budget import time_is_over
from archetype.studies.execute import Stopped, execute
from archetype.studies.store import RunRequest, Store, set_state, state_of
from archetype.training.stop_signal import stop_on_signal

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_COUNTS = 1.0  # between progress updates, which read a file per run
STOPPED = 3  # exit status of a worker that was asked to stop
Progress = Callable[[float, int], None]  # (runs done, including fractions; total)
Say = Callable[[str], None]


class Engine:
    """Base class of execution engines; `workers` is the number of parallel processes or jobs."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers

    def run(self, store: Store, keys: Sequence[str], progress: Progress = lambda done, total: None) -> None:
        """Train all incomplete runs in the given order. Failed runs are tried again.

        Raises:
            DataError: some runs failed; the message names the first failed run.
            Stopped: a signal arrived, or the time is over; unfinished runs can be resumed.
        """
        keys = list(dict.fromkeys(keys))
        for key in keys:
            if state_of(store.run_folder(key)) == "failed":
                set_state(store.run_folder(key), "pending", {})
        counted = -math.inf

        def look() -> None:
            nonlocal counted
            if time.monotonic() - counted >= SECONDS_BETWEEN_COUNTS:
                counted = time.monotonic()
                progress(sum(map(store.share_done, keys)), len(keys))

        if left := [key for key in keys if not store.is_complete(key)]:
            self.make(store, left, look)
        progress(sum(map(store.is_complete, keys)), len(keys))
        if failed := [key for key in keys if store.failure(key)]:
            cause = f"{len(failed)} of {len(keys)} runs failed, the first: {store.failure(failed[0])}"
            raise DataError(f"run {failed[0]}", cause)

    @abstractmethod
    def make(self, store: Store, keys: list[str], look: Callable[[], None]) -> None:
        """Train runs until each is complete or has failed. Call `look` regularly."""


class Here(Engine):
    """Run in this process, or in several single-threaded worker processes on this machine."""

    def make(self, store: Store, keys: list[str], look: Callable[[], None]) -> None:
        if self.workers == 1:
            work_through(store, keys, look)
            return
        with atomic.scratch_folder() as folder, stop_on_signal() as stop:
            atomic.write_bytes(names := folder / "keys", "\n".join(keys).encode())
            started = [_start_worker(store, names) for _ in range(min(self.workers, len(keys)))]
            try:
                while any(process.poll() is None for process in started):
                    for index, process in enumerate(started):
                        # killed by a signal, such as by the kernel when memory runs out
                        if (status := process.poll()) is not None and status < 0 and not stop:
                            started[index] = _start_worker(store, names)
                        elif status not in (None, 0, STOPPED) and not stop:
                            raise DataError(
                                "--workers", f"a worker ended with status {status}", "see its message above"
                            )
                    if stop or time_is_over():
                        raise Stopped
                    look()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                for process in started:
                    if process.poll() is None:
                        process.send_signal(signal.SIGTERM)  # the worker saves its run
                for process in started:
                    process.wait()


class OnRay(Engine):
    """Ray cluster with one task per run, which Ray restarts if its worker ends. All machines must share the store."""

    def make(self, store: Store, keys: list[str], look: Callable[[], None]) -> None:
        ray = _package("ray", "ray")
        if not ray.is_initialized():
            ray.init(num_cpus=self.workers, include_dashboard=False, log_to_driver=False)
        # a task may be killed at any moment and resumes from its last checkpoint
        task = ray.remote(num_cpus=1, max_retries=-1, retry_exceptions=True)(_make_one)
        waiting = [task.remote(str(store.folder), key) for key in keys]
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=1.0)
            ray.get(done)
            look()


class OnSlurm(Engine):
    """Slurm through submitit: a job array with one job per run. All nodes must share the store.

    Args:
        workers: number of jobs that run at the same time.
        cluster: slurm, or local for processes on this machine.
        options: submitit's options for Slurm, such as partition and timeout_min.
    """

    def __init__(self, workers: int = 1, cluster: str = "slurm", **options: Any) -> None:
        super().__init__(workers)
        self.cluster, self.options = cluster, {"timeout_min": 60} | options

    def make(self, store: Store, keys: list[str], look: Callable[[], None]) -> None:
        submitit = _package("submitit", "slurm")
        executor = submitit.AutoExecutor(folder=store.folder / "slurm", cluster=self.cluster)
        executor.update_parameters(cpus_per_task=1, **self.options)
        if self.cluster == "slurm":
            executor.update_parameters(slurm_array_parallelism=self.workers)
        while left := _left(store, keys):
            jobs = executor.map_array(_make_one, [str(store.folder)] * len(left), left)
            while not all(job.done() for job in jobs):
                look()
                time.sleep(SECONDS_BETWEEN_LOOKS)
            errors = [error for job in jobs if (error := job.exception()) is not None]
            if len(errors) == len(jobs) and "Stopped" not in str(errors[0]):  # stopped jobs are submitted again
                raise DataError("--engine", f"every job failed, the first: {one_line(str(errors[0]), 160)}")


def engine(name: str, workers: int) -> Engine:
    """Return an execution engine by name.

    Raises:
        SpecError: the name is unknown, or the number of workers is below 1.
    """
    engines: dict[str, type[Engine]] = {"here": Here, "ray": OnRay, "slurm": OnSlurm}
    if name not in engines:
        raise SpecError("--engine", f"there is no engine {name!r}", f"use {', '.join(engines)}")
    if workers < 1:
        raise SpecError("--workers", f"{workers} is too small", "use 1 or more")
    return engines[name](workers)


def make_needed(
    needed: Callable[[], list[RunRequest]], store: Store, engine: Engine, say: Say, progress: Progress
) -> None:
    """Train the runs of a study stage by stage; `needed` returns the missing runs of the current stage."""
    while requests := needed():
        keys = [store.add(request) for request in requests]
        say(f"{len(set(keys))} runs to make")
        engine.run(store, keys, progress)


def _left(store: Store, keys: Sequence[str]) -> list[str]:
    return [key for key in keys if not store.is_complete(key) and not store.failure(key)]


def work_through(
    store: Store, keys: Sequence[str], look: Callable[[], None] = lambda: None, parent: int | None = None
) -> None:
    """Execute runs one at a time. Wait for runs of other processes, and take over abandoned runs.

    Args:
        look: called after each run and each step.
        parent: id of the process whose end also stops this process (default: none).
    """
    while True:
        for key in keys:
            if time_is_over():
                raise Stopped
            execute(store, key, parent, look)
            look()
        if not _left(store, keys):
            return
        if parent is not None and os.getppid() != parent:
            raise Stopped
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _start_worker(store: Store, keys: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "archetype.studies.worker", str(store.folder), str(keys), str(os.getpid())]
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent.parent), os.environ.get("PYTHONPATH"))))
    # one thread per worker, as in `one_thread`; OpenMP reads this when torch is imported
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    # a new session: Ctrl-C reaches only this process, which ends its workers
    return subprocess.Popen(command + _extensions(), env=environment, start_new_session=True)


def _extensions() -> list[str]:
    modules = [module for name, module in sys.modules.items() if name.startswith("archetype_extension_")]
    return [file for module in modules if (file := getattr(module, "__file__", None))]


def _make_one(folder: str, key: str) -> None:
    # `Stopped` makes the job fail, and the cluster starts it again
    work_through(Store(Path(folder)), [key])


def _package(name: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        remedy = f"{install_command(extra)}, or remove --engine"
        raise SpecError("--engine", f"{name} is not installed", remedy) from None
