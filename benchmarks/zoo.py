"""How many of the causal types that transformers knows are read and agree: the table of docs/zoo.md.

    python -m benchmarks.zoo > docs/zoo.md

Of each type a small model with random weights is written by transformers and read here. Logits agree where their
largest difference is below 1e-5 of the largest logit, in float32.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import transformers

from tests.helpers.zoo import TYPES, Outcome, outcome


def row(result: Outcome) -> str:
    """One line of the table."""
    family = "registered" if result.registered else "by its files" if result.status == "agrees" else ""
    return f"| {result.kind} | {result.status} | {family} | {result.said.replace('|', ' ')} |"


def main() -> None:
    """Print the table, and the counts on standard error too."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    results = []
    for kind in TYPES:
        with tempfile.TemporaryDirectory() as place:
            results.append(outcome(kind, Path(place)))
    counts = Counter(one.status for one in results)
    said = ", ".join(f"{counts[status]} {words}" for status, words in (
        ("agrees", "are read and agree to 1e-5"), ("refused", "are refused, each with what is missing"),
        ("differs", "are read and differ"), ("not made", "cannot be made small by the keys that sizes usually have"),
    ))  # fmt: skip
    print(
        "# The causal types that transformers knows\n\n"
        "Written by `make zoo`: of each type, a small model with random weights is written by transformers "
        f"{transformers.__version__}\nand read here. Types of families that are not registered are read by the keys of "
        "their config.json and by the names and\nshapes of their tensors.\n\n"
        f"Of {len(results)} types, {said}.\n\n"
        "| type | outcome | family | largest difference, of the largest logit; or why |\n| --- | --- | --- | --- |"
    )
    for one in sorted(results, key=lambda one: (one.status, one.kind)):
        print(row(one))
    print(f"{len(results)} types: {said}", file=sys.stderr)


if __name__ == "__main__":
    main()
