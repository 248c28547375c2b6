"""Find numbered claims: a folder of experiment files such as `05-swiglu.yaml`, with their checks in `checks`."""

import re
from pathlib import Path

from archetype.distribution import REPOSITORY
from archetype.errors import SpecError

CLAIMS = Path("claims")  # in the working directory
CHECKOUT = Path(__file__).parents[2] / "claims"  # in the repository; not installed with the package


def find_claims(folder: Path | None = None) -> dict[int, Path]:
    """Return the experiment files of all claims by number.

    Args:
        folder: folder of claims (default: `claims` in the working directory, else in this package's checkout).

    Raises:
        SpecError: the folder has no claims.
    """
    if folder is None:
        # claims are part of the repository, but not of the installed package
        claims = _numbered(CLAIMS) or _numbered(CHECKOUT)
        cause = "are not part of the installed package"
        remedy = f"run this in a clone of {REPOSITORY or 'its repository'}"
    else:
        claims = _numbered(folder)
        cause, remedy = "contains no claims", "name experiment files NUMBER-TITLE.yaml"
    if not claims:
        raise SpecError(str(folder or CLAIMS), cause, remedy)
    return claims


def claim_file(number: int, folder: Path | None = None) -> Path:
    """Return the experiment file of one claim.

    Raises:
        SpecError: the folder has no claim with this number.
    """
    claims = find_claims(folder)
    if number not in claims:
        raise SpecError("claim", f"there is no claim {number}", f"use one of {', '.join(map(str, claims))}")
    return claims[number]


def _numbered(folder: Path) -> dict[int, Path]:
    files = sorted(folder.glob("*.yaml"))
    return dict(sorted((int(match[1]), file) for file in files if (match := re.fullmatch(r"(\d+)-.*", file.stem))))
