"""The name under which Archetype is installed, and the command that installs an extra."""

DISTRIBUTION = "archetype-lm"  # the name `archetype` on PyPI belongs to another project


def install_command(extra: str) -> str:
    """Return the pip command that installs the packages of an extra.

    The command works for an installed Archetype, wherever it came from (an index, a checkout, a git address): pip finds
    the distribution installed, keeps it, and fetches only the packages of the extra.

    Args:
        extra: a name under `[project.optional-dependencies]` in pyproject.toml.
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"
