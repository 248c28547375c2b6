"""Which models are read as they were published, and whether their parameters are counted right: docs/published.md.

    python -m benchmarks.published [SHARED]

Reads the pinned configurations and headers in SHARED/published (by default ../shared/data). It takes some minutes, for
the tensors of hundreds of billions of numbers are named one by one.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import transformers

from archetype.families.registry import family_of
from archetype.gallery.entries import entries
from tests.conftest import ROOT, SHARED
from tests.helpers.gallery import Found, find
from tests.helpers.published_models import Reading, published_models, read_published
from tests.helpers.zoo import page_of, rows_of

PAGE = ROOT / "docs" / "published.md"
REMEDY = r"; (?:remove it|the |\S+ is not supported|\S+ models cannot be read)"  # says no more than the type
SHOWN = 170  # characters of a reason


def reason(said: str) -> str:
    """Why a model is refused, in one cell of a table."""
    text = re.split(REMEDY, said)[0].replace("|", " ")
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def row(one: Reading) -> str:
    """One line of the table of all configurations."""
    total = "" if one.total is None else f"{one.total:,}"
    said = "; ".join(one.beside) if one.status == "read" else reason(one.said)
    return f"| {one.model.file.removesuffix('.json')} | {one.model.type} | {one.status} | {one.by} | {total} | {said} |"


def gallery_row(number: int, one: Found) -> str:
    """One line of the gallery's table."""
    status = "read" if one.is_read else "refused"
    return f"| {number} | {one.entry.name} | {one.entry.type} | {status} | {one.how} | {reason(one.said)} |"


def is_registered(one: Reading) -> bool:
    """Whether the family of a configuration is."""
    return family_of(one.model.values) is not None


def summary(results: list[Reading]) -> str:
    """The counts, and why configurations of registered families are refused."""
    counts, own = Counter(one.status for one in results), [one for one in results if is_registered(one)]
    read = [one for one in results if one.status == "read"]
    compared = [one for one in read if one.differs is not None]
    claimed = [one for one in read if one.model.claim]
    equal = [one for one in claimed if "equal to its digits" in one.beside[-1]]
    refused = [one for one in own if one.status == "refused"]
    lines = "\n".join(f"| {one.model.file.removesuffix('.json')} | {one.model.type} | {reason(one.said)} |"
                      for one in refused)  # fmt: skip
    return (
        f"Of {len(results)} configurations, {counts['read']} are read, {counts['refused']} are refused, and "
        f"{counts['not tried']} have their own code and no\npinned tensors. Of the {len(compared)} whose tensors are "
        f"known, {sum(one.differs == 0 for one in compared)} have exactly the same total. Of the {len(claimed)} with "
        f"a published count,\n{len(equal)} match all published digits.\n\n"
        f"Of {len(own)} configurations of registered families, {len(own) - len(refused)} are read. The other "
        f"{len(refused)} are refused:\n\n| configuration | type | why |\n| --- | --- | --- |\n{lines}\n"
    )


def page(results: list[Reading], gallery: list[Found]) -> str:
    """The whole page."""
    by_how = Counter(one.how for one in gallery if one.is_read)
    readable = sum(by_how.values())
    return (
        "# Published models\n\n"
        "Which published configurations does Archetype read, and are their parameter counts right? Each configuration "
        "is the authors'\nconfig.json, or that of a copy of their repository. Registered families are read from "
        "the keys alone, others also from the names\nand shapes of the tensors. These come from a file header that was "
        "verified to be the published one, or from what transformers\n"
        f"{transformers.__version__} would save for that configuration. The total is compared with the authors' count "
        "and with the sizes of these tensors, except\nfor parts that a text decoder does not use and biases that are "
        "not trained by gradients. Written by `make zoo`.\n\n"
        f"{summary(results)}\n"
        "## A gallery of architectures\n\n"
        f"Of the {len(gallery)} entries of [Raschka's LLM architecture gallery]"
        "(https://sebastianraschka.com/llm-architecture-gallery/) in its copy\nof 2026-09-27, "
        f"{readable} are read as published: {by_how['by its pinned configuration']} by their pinned configuration "
        f"(possibly of the same weights in another precision), {by_how['by values of its configuration']} by the\n"
        "values of their configuration that decide the model, and "
        f"{by_how['by its type alone']} by their type alone: models of the type agree with transformers\n"
        "([coverage](zoo.md)), but the entry's own files were not available. [The gallery](gallery_figures.md) says "
        "where each comes from.\n\n"
        "| | entry | type | outcome | known | reason |\n| --- | --- | --- | --- | --- | --- |\n"
        + "\n".join(gallery_row(number, one) for number, one in enumerate(gallery, 1))
        + "\n\n## Each configuration\n\n"
        "| configuration | type | outcome | read by | parameters | comparisons, or the reason |\n"
        "| --- | --- | --- | --- | --- | --- |\n" + "\n".join(row(one) for one in results) + "\n"
    )


def found(results: dict[str, tuple[str, str]]) -> list[Found]:
    """What is known of each entry of the gallery, by what became of pinned configurations and of types."""
    zoo = rows_of(page_of("causal").read_text(encoding="utf-8"))
    return [find(entry, results, zoo) for entry in entries().values()]


def main() -> None:
    """Write the page, and print its counts."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    shared = Path(sys.argv[1]) if sys.argv[1:] else SHARED / "data"
    results = [read_published(shared, model) for model in published_models(shared)]
    gallery = found({one.model.file: (one.status, one.said) for one in results})
    PAGE.write_text(page(results, gallery), encoding="utf-8")
    print(Counter(one.status for one in results), Counter(one.how for one in gallery if one.is_read), file=sys.stderr)


if __name__ == "__main__":
    main()
