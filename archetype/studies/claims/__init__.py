"""The experiment files of the 25 claims, one each, and of what stands beside them."""

import re
from pathlib import Path

from archetype.errors import SpecError

FOLDER = Path(__file__).parent


def claim_numbers() -> list[int]:
    """The numbers of the claims that have a file."""
    return sorted(int(match[1]) for file in FOLDER.glob("*.yaml") if (match := re.fullmatch(r"(\d+)-.*", file.stem)))


def claim_file(number: int) -> Path:
    """The experiment file of a claim.

    Raises:
        SpecError: there is none.
    """
    files = sorted(FOLDER.glob(f"{number:02d}-*.yaml"))
    if not files:
        raise SpecError("claim", f"there is no claim {number}", f"use one of {', '.join(map(str, claim_numbers()))}")
    return files[0]
