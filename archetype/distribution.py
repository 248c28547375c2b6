"""The name under which Archetype is installed, the addresses of its source and documentation, and its extras."""

DISTRIBUTION = "archetype-lm"  # the name `archetype` on PyPI belongs to another project
REPOSITORY = "https://github.com/archetype-lm/archetype"
SITE = "https://archetype-lm.github.io/archetype/"  # of the documentation, with the schemas of files


def install_command(extra: str) -> str:
    """Return the pip command that installs the packages of an extra.

    The command works for an installed Archetype, wherever it came from (an index, a checkout, a git address): pip finds
    the distribution installed, keeps it, and fetches only the packages of the extra.

    Args:
        extra: a name under `[project.optional-dependencies]` in pyproject.toml.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def schema_url(kind: str) -> str:
    """Return the address of a JSON Schema that is published with the documentation.

    Args:
        kind: of the files that the schema describes: specification, recipe or experiment.
    """
    return f"{SITE}schemas/{kind}.json"
