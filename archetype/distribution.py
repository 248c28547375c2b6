"""The name under which Archetype is installed, where it came from, and the addresses that its owner gives it."""

import json
import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]  # of an installed package the folder of all packages
DISTRIBUTION = "archetype-lm"  # the name `archetype` on PyPI belongs to another project
# Nobody has published the repository or the site yet. An address that nobody owns could be taken by anyone, so both
# stay None until their owner writes them here.
REPOSITORY: str | None = None
SITE: str | None = None  # of the documentation, with the JSON Schemas under schemas/; ends with a slash


def install_command(extra: str) -> str:
    """Return the pip command that installs the packages of an extra.

    In a checkout it names the checkout. Of an installed Archetype it names the packages themselves, so that pip never
    asks an index for our own distribution.

    Args:
        extra: a name under `[project.optional-dependencies]` in pyproject.toml.
    """
    if (CHECKOUT / "pyproject.toml").is_file():
        place = "." if Path.cwd() == CHECKOUT else CHECKOUT
        return f"pip install -e '{place}[{extra}]'"
    return " ".join(["pip install", *(f"'{requirement}'" for requirement in _requirements(extra))])


def _requirements(extra: str) -> list[str]:
    """Return the requirements of an extra, without their markers, from the metadata of the installed package."""
    from importlib.metadata import distribution

    marked = re.compile(rf"""\bextra\s*==\s*["']{re.escape(extra)}["']""")
    lines = (line.partition(";") for line in distribution(DISTRIBUTION).requires or [])
    return [requirement.strip() for requirement, _, marker in lines if marked.search(marker)]


def installed_from() -> str:
    """Return where this Archetype was installed from, without a path of this machine, for files that others read."""
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
    """Return the address at which the documentation publishes a JSON Schema, or None while it has no site.

    Args:
        kind: of the files that the schema describes: specification, recipe or experiment.
    """
    return f"{SITE}schemas/{kind}.json" if SITE else None
