"""Help text of a setting, as metadata of its field."""

from typing import Any

from pydantic import Field


def described(text: str) -> Any:
    """Return metadata with the help of a setting, which the JSON Schema and the command line show."""
    return Field(description=text)
