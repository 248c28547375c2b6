"""Small trained model in the package, served if the command line names no model."""

from pathlib import Path

from archetype.apps.serve.models import Source

NAME = "example"
FOLDER = Path(__file__).parent / "example"  # written by `python -m benchmarks.example`
PROMPT = "The model reads"


def example() -> Source:
    return Source(NAME, str(FOLDER), on_demand=True, prompt=PROMPT)
