"""The name under which Archetype is installed, the addresses of its source and documentation, and its extras."""

from pathlib import Path

CHECKOUT = Path(__file__).parents[1]  # of an installed package the folder of all packages
DISTRIBUTION = "archetype-lm"  # the name `archetype` on PyPI belongs to another project
REPOSITORY = "https://github.com/archetype-lm/archetype"
SITE = "https://archetype-lm.github.io/archetype/"  # of the documentation, with the schemas of files


def install_command(extra: str) -> str:
    """Return the pip command that installs the packages of an extra.

    Of an installed Archetype, wherever it came from, pip finds the distribution, keeps it, and fetches only the
    packages of the extra. A checkout is named by its path, since it need not be installed, and no index has it.

    Args:
        extra: a name under `[project.optional-dependencies]` in pyproject.toml.
    """
    if (CHECKOUT / "pyproject.toml").is_file():
        place = "." if Path.cwd() == CHECKOUT else CHECKOUT
        return f"pip install -e '{place}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def schema_url(kind: str) -> str:
    """Return the address of a JSON Schema that is published with the documentation.

    Args:
        kind: of the files that the schema describes: specification, recipe or experiment.
    """
    return f"{SITE}schemas/{kind}.json"
