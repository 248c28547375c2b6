"""Numbered claims: a folder of experiment files such as `05-swiglu.yaml`, with the checks of their parts beside."""

import re
from pathlib import Path

from archetype.distribution import REPOSITORY
from archetype.errors import SpecError

CLAIMS = Path("claims")  # in the working directory
CHECKOUT = Path(__file__).parents[2] / "claims"  # of the repository; not part of an installed package


def find_claims(folder: Path | None = None) -> dict[int, Path]:
    """Return the experiment file of each claim by its number.

    Args:
        folder: of the files (absent: `claims` in the working directory, else in the checkout of this package).

    Raises:
        SpecError: the folder holds no claims.
    """
    if folder is None:
        claims = _numbered(CLAIMS) or _numbered(CHECKOUT)
        cause = "are not part of the installed package"
        remedy = f"run this in a clone of {REPOSITORY or 'its repository'}"
    else:
        claims = _numbered(folder)
        cause, remedy = "holds no claims", "name experiment files NUMBER-TITLE.yaml"
    if not claims:
        raise SpecError(str(folder or CLAIMS), cause, remedy)
    return claims


def claim_file(number: int, folder: Path | None = None) -> Path:
    """Return the experiment file of one claim.

    Args:
        number: of the claim.
        folder: as in `find_claims`.

    Raises:
        SpecError: the folder holds no claims, or none of this number.
    """
    claims = find_claims(folder)
    if number not in claims:
        raise SpecError("claim", f"there is no claim {number}", f"use one of {', '.join(map(str, claims))}")
    return claims[number]


def _numbered(folder: Path) -> dict[int, Path]:
    files = sorted(folder.glob("*.yaml"))
    return dict(sorted((int(match[1]), file) for file in files if (match := re.fullmatch(r"(\d+)-.*", file.stem))))
