"""Facts about published models, as `models.csv` has them. No specification is loaded."""

import csv
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
MODELS, SPECS = FOLDER / "models.csv", FOLDER / "specs"


@cache
def facts() -> tuple[dict[str, str], ...]:
    """Return one row per model, in order of date."""
    with MODELS.open(encoding="utf-8", newline="") as rows:
        return tuple(csv.DictReader(rows))


def has_specification(row: dict[str, str]) -> bool:
    """Return whether a model can be named wherever a specification is expected."""
    return bool(row["spec"]) or (SPECS / f"{row['id']}.yaml").is_file()
