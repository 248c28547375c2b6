"""The example: a small trained model in the package, served where the command line names none."""

from pathlib import Path

from archetype.apps.serve.models import Source

NAME = "example"
FOLDER = Path(__file__).parent / "example"  # written by `python -m benchmarks.example`
PROMPT = "The model reads"


def example() -> Source:
    """Return the example as a model to serve."""
    return Source(NAME, str(FOLDER), on_demand=True, prompt=PROMPT)
