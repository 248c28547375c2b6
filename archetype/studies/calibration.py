"""Calibrate this machine and code: trained verdicts count only if known differences are detected and no others.

The same model with other seeds must give "no difference shown", and a model of twice the width must be "shown" to be
better. Both are parts of an experiment in this package, and the usual decision rules apply.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from archetype.errors import SpecError
from archetype.io import atomic
from archetype.io.files import read_json
from archetype.machine.environment import description, now, versions
from archetype.studies.evidence import NO_DIFFERENCE, SHOWN
from archetype.studies.experiment import Experiment
from archetype.studies.store import CODE, Store

MUST_GIVE = {"same": NO_DIFFERENCE, "twice-as-wide": SHOWN}


def calibration_file() -> Path:
    return Path(__file__).with_suffix(".yaml")


def check_is_calibration(experiment: Experiment) -> None:
    """Refuse an experiment without the two parts of a calibration."""
    ids = {part.id for part in experiment.parts}
    if missing := [name for name in MUST_GIVE if name not in ids]:
        raise SpecError("parts", f"a calibration needs the parts {', '.join(MUST_GIVE)}", f"add {missing[0]}")


def machine_key() -> str:
    """Return a hash of the processor, its features, the operating system and the torch version."""
    device = torch.device("cpu")
    # what changes the order of sums, and with it the numbers of a run
    about = {name: value for name, value in description(device).items() if name in ("processor", "flags", "system")}
    return hashlib.sha256(json.dumps([about, versions()["torch"]]).encode()).hexdigest()[:16]


def write_calibration(store: Store, experiment: Experiment, verdicts: dict[str, str], deviation: float) -> bool:
    """Save a calibration of this machine. Return whether both parts got the required verdicts.

    Args:
        verdicts: verdict of each part.
        deviation: standard deviation of the differences between equal models, relative to the mean.
    """
    passed = all(verdicts.get(name) == verdict for name, verdict in MUST_GIVE.items())
    data = {
        "passed": passed,
        "verdicts": verdicts,
        "deviation": deviation,
        "experiment": experiment.hash,
        "date": now(),
        "code": CODE,
        "machine": description(torch.device("cpu")),
    }
    atomic.make_folder(store.folder)
    atomic.write_json(store.folder / f"calibration-{machine_key()}.json", data)
    return passed


def read_calibration(store: Store) -> dict[str, Any] | None:
    file = store.folder / f"calibration-{machine_key()}.json"
    return read_json(file) if file.is_file() else None
