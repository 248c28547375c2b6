"""The `Attributes:` of a docstring, where a class says what each of its fields means."""

import re
from inspect import cleandoc


def attributes(docstring: str | None) -> dict[str, str]:
    """The meaning of each field that a docstring describes, in one line."""
    section = cleandoc(docstring or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
