"""The gallery as a folder of files: pages, diagrams, specifications, and the table as JSON and CSV."""

import csv
import difflib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from archetype.diagram.architecture import draw
from archetype.diagram.compare import compared
from archetype.diagram.svg import svg
from archetype.errors import SpecError
from archetype.estimate.report import common_length, cost_report
from archetype.gallery.card import Card, card_of
from archetype.gallery.entries import TINY, Entry, Evidence, entries
from archetype.gallery.html import EDITOR, card_page, index_page
from archetype.gallery.ideas import adoption
from archetype.gallery.rows import COLUMNS, table_rows
from archetype.gallery.tiny import tiny
from archetype.io import atomic
from archetype.io.yaml import with_schema_line
from archetype.spec.serialize import to_yaml

ADDED = "added.json"  # in a site's folder: the models that were added to it
ASSETS = ("gallery.css", "gallery.js")
FOLDER = Path(__file__).parent


def write_site(folder: Path, added: Sequence[Entry] = (), only: Sequence[str] = ()) -> list[Card]:
    """Write the gallery into a folder and return its cards.

    Args:
        folder: where the files are written; other files in it stay.
        added: models to add, such as those of `added_to(folder)`.
        only: ids of the package's models to write (default: all).

    Raises:
        SpecError: an id does not exist.
        CheckpointError: the folder cannot be written.
    """
    cards = all_cards(added, only)
    atomic.make_folder(folder)
    # compute every file before writing the first, so that an error leaves no partial site
    files = dict(chain(shared_files(cards), *(files_of(card, cards) for card in cards)))
    for name, data in files.items():
        atomic.write_bytes(folder / name, data)
    return cards


def all_cards(added: Sequence[Entry] = (), only: Sequence[str] = ()) -> list[Card]:
    """Return the cards of all models by date, undated models last. An added model replaces one with the same id.

    Raises:
        SpecError: an id in `only` does not exist.
    """
    for name in only:
        if name not in entries():
            close = difflib.get_close_matches(name, entries(), n=1, cutoff=0.5)
            remedy = f"did you mean {close[0]}?" if close else "index.html of the full gallery lists all ids"
            raise SpecError("--only", f"the gallery has no model {name!r:.60}", remedy)
    models = {name: entry for name, entry in entries().items() if not only or name in only}
    models |= {entry.id: entry for entry in added}
    return [card_of(entry) for entry in sorted(models.values(), key=lambda entry: entry.date or "9999")]


def shared_files(cards: Sequence[Card]) -> Iterator[tuple[str, bytes]]:
    """Yield name and contents of the index, the table, and the files that all pages load."""
    for name in ASSETS:
        yield name, (FOLDER / name).read_bytes()
    rows = table_rows(cards)
    yield (
        "gallery.json",
        (json.dumps({"columns": COLUMNS, "models": rows}, indent=1, ensure_ascii=False) + "\n").encode(),
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    yield "gallery.csv", text.getvalue().encode()
    yield "index.html", index_page(cards, adoption(cards)).encode()


def files_of(card: Card, cards: Sequence[Card], editor: str = EDITOR) -> Iterator[tuple[str, bytes]]:
    """Yield name and contents of each file of a card."""
    entry = card.entry
    descendants = [other.entry.id for other in cards if other.entry.ancestor == entry.id]
    yield f"{entry.id}.html", card_page(card, descendants, editor).encode()
    if card.spec is None:
        return
    yield f"{entry.id}.yaml", with_schema_line(to_yaml(card.spec), "specification").encode()
    yield f"{entry.id}{TINY}.yaml", with_schema_line(to_yaml(tiny(card.spec)), "specification").encode()
    if card.changes:
        yield f"{entry.id}-changes.svg", changes_picture(card).encode()


def changes_picture(card: Card) -> str:
    """Return the diagrams of the ancestor and of the model side by side, with differences in colour."""
    assert card.spec is not None and card.ancestor is not None
    specs = (card.ancestor, card.spec)
    length = common_length(list(specs))
    scenes = [(spec, draw(cost_report(spec, 1, length), in_a_row=1)) for spec in specs]
    return svg(compared(scenes[0], scenes[1]), compact=True)


def added_to(folder: Path) -> list[Entry]:
    """Return the models that were added to a site.

    Raises:
        SpecError: the file is damaged.
    """
    file = folder / ADDED
    if not file.is_file():
        return []
    try:
        rows = json.loads(file.read_bytes())
        return [Entry(**{**row, "evidence": Evidence(**row["evidence"])}) for row in rows]
    except (ValueError, TypeError, KeyError):
        raise SpecError(str(file), "is not a list of gallery models", "delete it, and add them again") from None


def save_added(folder: Path, added: Sequence[Entry]) -> None:
    """Write the models that were added to a site, into its folder."""
    rows: list[Mapping[str, object]] = [asdict(entry) for entry in added]
    atomic.write_bytes(folder / ADDED, (json.dumps(rows, indent=1) + "\n").encode())
