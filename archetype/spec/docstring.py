"""Parser of the `Attributes:` section of docstrings."""

import re
from inspect import cleandoc


def attributes(docstring: str | None) -> dict[str, str]:
    """Return {field: description} from a docstring, each in one line."""
    section = cleandoc(docstring or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
