"""How many types that transformers knows for a task are read and agree: the pages docs/zoo.md and docs/zoo_TASK.md.

    python -m benchmarks.zoo [TASK ...]

A page keeps what other releases of transformers that it was written with have otherwise.

Of each type a small model with random weights is written by transformers and read here. Its answers agree where their
largest difference is below 1e-5 of the largest, in float32. Tasks are causal, masked, texts, tokens, spans, pairs,
images and image_text, where a text alone is read.
"""

import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import transformers

from archetype.convert.infer.proofs import FILE
from archetype.families.class_keys import dotted, release_of
from tests.conftest import SHARED
from tests.helpers.zoo import NOT_THERE, OTHERWISE, TASKS, Outcome, outcome, page_of, proved_by_pages, tables_of
from tests.helpers.zoo_published import outcome_as_published, pinned_decoders, summary

WRITTEN_BY = re.compile(r"written by transformers ([\d.]+)")
AS_PUBLISHED = (
    "The third column shows how many of the [published configurations](published.md) of the type agree, with all "
    "keys except sizes\nkept."
)


def row(result: Outcome, published: str | None) -> list[str]:
    """One line of the table."""
    # what a comparison had to correct is not proved by a page, and is compared at each first load
    by_files = "by its files, corrected" if result.corrected else "by its files"
    family = "registered" if result.registered else by_files if result.status == "agrees" else ""
    column = [] if published is None else [published]
    said = result.said.replace("|", " ").replace("[", r"\[")  # which would begin a cell, and a link
    return [result.kind, result.status, *column, family, said]


def as_published(shared: Path) -> dict[str, str]:
    """How many of the pinned configurations of each causal type agree, made small, and what became of the others."""
    cells = {}
    for kind, models in pinned_decoders(shared).items():
        with tempfile.TemporaryDirectory() as place:
            results = [outcome_as_published(kind, one, Path(place) / str(number)) for number, one in enumerate(models)]
        cells[kind] = summary(results)
    return cells


def page(name: str, results: list[Outcome], published: dict[str, str] | None, before: str) -> str:
    """The page of a task, with a column of published configurations where there are any.

    Args:
        name: of the task.
        results: of the installed release.
        published: how many published configurations agree, by type.
        before: the page as it was, whose rows of other releases are kept where they differ from the newest's.
    """
    rows = {one.kind: row(one, None if published is None else published.get(one.kind, "")) for one in results}
    known = tables_of(before) | {release_of(transformers.__version__): rows}
    newest = known[max(known)]
    is_newest = newest is rows
    version = transformers.__version__ if is_newest else WRITTEN_BY.findall(before)[0]
    counts = Counter(one[1] for one in newest.values())
    said = ", ".join(f"{counts[status]} {words}" for status, words in (
        ("agrees", "are read and agree to 1e-5"), ("refused", "are not supported (the message names what is missing)"),
        ("differs", "are read but differ"), ("not made", "have no small model with the usual size keys"),
    ))  # fmt: skip
    print(f"{name}: {len(newest)} types: {said}", file=sys.stderr)
    text = (
        f"# Model types of transformers: {TASKS[name].title}\n\n"
        "Which of these model types does Archetype read, and do the logits agree? For each type, a small model with "
        f"random weights is\nwritten by transformers {version} and read by Archetype. Types without a registered "
        "family are inferred from the keys of their config.json and\nthe names and shapes of their tensors. Written by "
        "`make zoo`.\n\n"
        f"Of {len(newest)} types, {said}.\n\n"
    )
    more = ["outcome"] if published is None else ["outcome", "as published"]
    columns = ["type", *more, "family", "largest difference relative to the largest logit, or the reason"]
    if published is not None:
        text += f"{AS_PUBLISHED}\n\n"
    text += table(columns, list(newest.values()))
    for release in sorted(known.keys() - {max(known)}, reverse=True):
        older = known[release]
        gone = [[kind, NOT_THERE, *[""] * (len(columns) - 2)] for kind in newest.keys() - older.keys()]
        other = [one for kind, one in older.items() if kind not in newest or newest[kind][1] != one[1]]
        text += f"\n{OTHERWISE}{dotted(release)}\n\n{table(columns, gone + other)}" if gone + other else ""
    return text


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Rows by outcome and type."""
    head = f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    return head + "".join(f"| {' | '.join(one)} |\n" for one in sorted(rows, key=lambda one: (one[1], one[0])))


def write_proved() -> None:
    """Write the types that the pages prove into the package, beside those of other versions of transformers."""
    version, proved = proved_by_pages()
    versions = json.loads(FILE.read_bytes()) if FILE.is_file() else {}
    FILE.write_text(json.dumps(versions | {version: proved}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write the pages and the table of proved types, and print the counts."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:] or TASKS:
        results = []
        for kind in TASKS[name].types:
            with tempfile.TemporaryDirectory() as place:
                results.append(outcome(kind, Path(place), TASKS[name]))
        published = as_published(SHARED / "data") if name == "causal" else None
        text = page(name, results, published, page_of(name).read_text(encoding="utf-8"))
        page_of(name).write_text(text, encoding="utf-8")
    write_proved()


if __name__ == "__main__":
    main()
