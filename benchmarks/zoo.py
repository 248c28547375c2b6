"""How many types that transformers knows for a task are read and agree: the pages docs/zoo.md and docs/zoo_TASK.md.

    python -m benchmarks.zoo [TASK ...]

Of each type a small model with random weights is written by transformers and read here. Its answers agree where their
largest difference is below 1e-5 of the largest, in float32. Tasks are causal, masked, texts, tokens, pairs and images.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import transformers

from tests.helpers.zoo import TASKS, Outcome, outcome, page_of


def row(result: Outcome) -> str:
    """One line of the table."""
    family = "registered" if result.registered else "by its files" if result.status == "agrees" else ""
    return f"| {result.kind} | {result.status} | {family} | {result.said.replace('|', ' ')} |"


def page(name: str, results: list[Outcome]) -> str:
    """The page of a task."""
    counts = Counter(one.status for one in results)
    said = ", ".join(f"{counts[status]} {words}" for status, words in (
        ("agrees", "are read and agree to 1e-5"), ("refused", "are refused, each with what is missing"),
        ("differs", "are read and differ"), ("not made", "cannot be made small by the keys that sizes usually have"),
    ))  # fmt: skip
    print(f"{name}: {len(results)} types: {said}", file=sys.stderr)
    head = (
        f"# The {TASKS[name].title} that transformers knows\n\n"
        "Written by `make zoo`: of each type, a small model with random weights is written by transformers "
        f"{transformers.__version__}\nand read here. Types of families that are not registered are read by the keys of "
        "their config.json and by the names and\nshapes of their tensors.\n\n"
        f"Of {len(results)} types, {said}.\n\n"
        "| type | outcome | family | largest difference, of the largest logit; or why |\n| --- | --- | --- | --- |\n"
    )
    rows = (row(one) for one in sorted(results, key=lambda one: (one.status, one.kind)))
    return head + "\n".join(rows) + "\n"


def main() -> None:
    """Write the pages, and print the counts."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or TASKS:
        results = []
        for kind in TASKS[name].types:
            with tempfile.TemporaryDirectory() as place:
                results.append(outcome(kind, Path(place), TASKS[name]))
        page_of(name).write_text(page(name, results), encoding="utf-8")


if __name__ == "__main__":
    main()
