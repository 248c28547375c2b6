"""Name, origin and published addresses of the installed package."""

import json
import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]  # site-packages, if installed
DISTRIBUTION = "archetype-lm"  # the name `archetype` on PyPI belongs to another project
# The repository and the site are not published yet. Anyone could register an address that nobody owns, so both stay
# None until they exist.
REPOSITORY: str | None = None
SITE: str | None = None  # documentation, with the JSON Schemas under schemas/; ends with a slash


def install_command(extra: str) -> str:
    """Return the pip command that installs an extra (`[project.optional-dependencies]` in pyproject.toml).

    Outside a checkout, it names the packages of the extra, so that pip never looks for this distribution on an index.
    """
    if (CHECKOUT / "pyproject.toml").is_file():
        target = "." if Path.cwd() == CHECKOUT else CHECKOUT
        return f"pip install -e '{target}[{extra}]'"
    return " ".join(["pip install", *(f"'{requirement}'" for requirement in _requirements(extra))])


def _requirements(extra: str) -> list[str]:
    # from the metadata of the installed package, without markers
    from importlib.metadata import distribution

    marked = re.compile(rf"""\bextra\s*==\s*["']{re.escape(extra)}["']""")
    lines = (line.partition(";") for line in distribution(DISTRIBUTION).requires or [])
    return [requirement.strip() for requirement, _, marker in lines if marked.search(marker)]


def installed_from() -> str:
    """Return where the package was installed from, without local paths, since users share files that contain it."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return "a checkout"
    recorded = json.loads(installed.read_text("direct_url.json") or "{}")  # PEP 610; absent if it came from an index
    if "vcs_info" in recorded:
        commit = recorded["vcs_info"]
        return f"{commit['vcs']}+{recorded['url']}@{commit['commit_id']}"
    return "a checkout" if "dir_info" in recorded else "a file" if recorded else "a package index"


def schema_url(kind: str) -> str | None:
    """Return the URL of the JSON Schema of a specification, recipe or experiment; None while there is no site."""
    return f"{SITE}schemas/{kind}.json" if SITE else None
