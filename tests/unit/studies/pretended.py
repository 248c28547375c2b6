"""Studies whose runs are done as soon as they are asked for."""

from pathlib import Path
from typing import Any

from archetype.studies.store import RunRequest, RunResult, Store
from archetype.studies.study import Study
from tests.unit.studies.small import experiment, trained

GRID = {"optimizer.learning_rate": [0.001, 0.01, 0.1]}
LOSS_BY_RATE = {0.0001: 3.0, 0.001: 2.0, 0.01: 1.5, 0.1: 1.4, 1.0: 1.45, 10.0: 2.0}


class Pretended(Store):
    """Runs that are done as soon as they are asked for, with losses that a formula gives.

    Args:
        folder: of the store.
        losses: of a learning rate.
        gain: by which a wider model is better, or by the width.
        spread: of the seeds.
    """

    def __init__(self, folder: Path, losses: dict[float, float], gain: float | dict[int, float] = 0.05,
                 spread: float = 0.003) -> None:  # fmt: skip
        super().__init__(folder)
        self.losses, self.gain, self.spread = losses, gain, spread
        self.asked: list[RunRequest] = []
        self.made: set[str] = set()

    def result(self, request: RunRequest) -> RunResult | None:
        if request.key not in self.made:
            return None
        recipe = request.recipe
        rate, seed = recipe.optimizer.learning_rate, recipe.seed
        width = recipe.spec["d_model"] if isinstance(recipe.spec, dict) else 8
        gain = self.gain[width] if isinstance(self.gain, dict) else self.gain * (width > 8)
        loss = self.losses.get(rate, 1.5) - gain + self.spread * ((7 * seed + width) % 11 - 5)
        about = {"seconds": 1.0, "predictions": 192, "environment": {"processor": "none"}}
        names = [metric.key for metric in request.metrics]
        return RunResult(dict.fromkeys(names, loss), False, about, [(2, 2.0), (6, loss)], loss, 0.5, self.folder)

    def make(self, requests: list[RunRequest]) -> None:
        self.asked += requests
        self.made |= {request.key for request in requests}


def pretended(tmp_path: Path, mode: str = "full", *parts: dict[str, Any], **options: Any) -> tuple[Study, Pretended]:
    more = {name: options.pop(name) for name in [*options] if name in ("is_calibration", "claim")}
    store = Pretended(tmp_path / "store", options.pop("losses", LOSS_BY_RATE), **options)
    one = Study(experiment(*parts, **more), mode, tmp_path, store)
    for _ in range(10):
        if not (requests := [request for part in one.trained.values() for request in part.needed()]):
            return one, store
        store.make(requests)
    raise AssertionError("it asks without end")


def calibrating() -> list[dict[str, Any]]:
    equal = {"arms": {"a": {}, "again": {"seed_offset": 100}}, "decide": {"kind": "equivalence", "margin": "3%"}}
    return [trained(id="same", seeds=8, **equal), trained(id="twice-as-wide", seeds=8)]
