"""What becomes of each key of a config.json, changed alone, in every causal type that is read: docs/zoo_keys.md.

    python -m benchmarks.one_key [TYPE ...]

Of each type a small model of transformers has one key after the other changed, and is read by both libraries. It takes
about an hour on a core; where types are named, the others' rows stay as they are. `make soak` proves the same.
"""

import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import transformers

from tests.conftest import ROOT
from tests.helpers.one_key import SmallModel, tried_types

PAGE = ROOT / "docs" / "zoo_keys.md"
STATUSES = ("agrees", "refused", "differs", "not made")


def counted(kind: str) -> dict[str, int]:
    """How many keys and values of a type were tried, and what became of them."""
    with tempfile.TemporaryDirectory() as place:
        results = list(SmallModel(kind, Path(place)).outcomes())
    keys = {change.path for one in results for change in one.changes}
    return {"keys": len(keys), "values": len(results)} | dict(Counter(one.status for one in results))


def written() -> dict[str, dict[str, int]]:
    """The rows of the page as it is."""
    rows = re.findall(r"^\| (\S+) \|((?: \d+ \|)+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        kind: dict(zip(("keys", "values", *STATUSES), map(int, re.findall(r"\d+", numbers)), strict=True))
        for kind, numbers in rows
    }


def page(counts: dict[str, dict[str, int]]) -> str:
    """The page."""
    columns = ("keys", "values", *STATUSES)
    sums = {name: sum(count.get(name, 0) for count in counts.values()) for name in columns}
    head = (
        "# Changes of one key\n\n"
        "Does Archetype respect every key of config.json? The test takes a small model of each causal type that "
        "Archetype reads ([coverage](zoo.md)).\nIt changes one key at a time to each other sensible value, removes it, "
        f"or adds keys of other types. If transformers {transformers.__version__} reads a\nkey, Archetype must give "
        "the same logits (to 1e-5, or to 8 times what one more rounding of each weight changes, at most 1 %) or\n"
        "refuse the file; other keys must change nothing. Written by "
        "`python -m benchmarks.one_key`.\n\n"
        f"Of {sums['values']:,} values of {sums['keys']:,} keys of {len(counts)} types, {sums['agrees']:,} "
        f"agree, {sums['refused']:,} are refused, {sums['differs']:,} differ, and\n{sums['not made']:,} "
        "are values with which transformers itself cannot build a model.\n\n"
    )
    table = [f"| type | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for kind, count in sorted(counts.items()):
        table.append(f"| {kind} | {' | '.join(str(count.get(name, 0)) for name in columns)} |")
    return head + "\n".join(table) + "\n"


def main() -> None:
    """Write the page, and print what differs."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")  # of libraries, on configurations that nobody uses
    counts = written() if sys.argv[1:] else {}
    for kind in tried_types():
        if not sys.argv[1:] or kind in sys.argv[1:]:
            counts[kind] = counted(kind)
            print(kind, counts[kind], file=sys.stderr, flush=True)
    PAGE.write_text(page(counts), encoding="utf-8")


if __name__ == "__main__":
    main()
