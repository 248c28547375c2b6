"""`archetype gallery`: a static site of published models, with a card for each. It does not load torch."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from archetype.apps.cli.options import Json
from archetype.apps.cli.output import print_json
from archetype.apps.cli.verb import Verb

if TYPE_CHECKING:
    from archetype.gallery.entries import Entry


class Galleries(TyperGroup):
    """Subcommands of `gallery`. Without one, `gallery` is `gallery write`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `write` unless a subcommand or help is named."""
        if not set(args[:1]) & {*self.commands, "-h", "--help"}:
            args = ["write", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Galleries,
    add_completion=False,
    rich_markup_mode=None,
    help="Write a static site of published models: cost, state by length, diagram and changes from the ancestor.",
    epilog="`archetype gallery` is short for `archetype gallery write`.",
)
To = Annotated[Path, typer.Option("--to", "-o", "--output", help="Folder of the site.")]
Only = Annotated[
    str, typer.Option(metavar="ID,...", help="Write only these models, such as kimi-k2,glm-5.  [default: all]")
]
FOLDER = Path("gallery")


@app.command(cls=Verb)
def write(to: To = FOLDER, only: Only = "", as_json: Json = False) -> None:
    """Write the site, including added models, and print the path of its index page."""
    from archetype.gallery.site import added_to, write_site

    cards = write_site(to, added_to(to), _ids(only))
    page = to / "index.html"
    print_json({"page": str(page), "models": len(cards)}) if as_json else print(page)


@app.command(cls=Verb)
def add(
    source: Annotated[
        str, typer.Argument(metavar="MODEL", help="owner/name[@revision], or a model folder or its config.json.")
    ],
    to: To = FOLDER,
    name: Annotated[str | None, typer.Option(help="Name on the card.  [default: that of MODEL]")] = None,
    ancestor: Annotated[
        str, typer.Option(metavar="ID", help="Model of the gallery, or preset, to compare it with.")
    ] = "",
    date: Annotated[str, typer.Option(metavar="YYYY-MM-DD", help="Date of its publication.")] = "",
    why: Annotated[str, typer.Option(help="Why it matters, in one sentence.")] = "",
    only: Only = "",
    as_json: Json = False,
) -> None:
    """Add a card for a model from its configuration alone, and write the site again.

    A model that needs an unsupported part gets a grey card that names the part.
    """
    from archetype.errors import SpecError
    from archetype.families.index import preset_facts
    from archetype.gallery.entries import entries
    from archetype.gallery.site import added_to, save_added, write_site

    if date and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise SpecError("--date", f"{date!r:.40} is not a date", "write it like 2026-11-30")
    if ancestor and ancestor not in entries() and ancestor not in preset_facts():
        raise SpecError("--ancestor", f"{ancestor!r:.40} is neither in the gallery nor a preset", "see its index.html")
    entry = _entry(source, name, ancestor, date, why)
    others = [other for other in added_to(to) if other.id != entry.id]
    write_site(to, [*others, entry], _ids(only))
    save_added(to, [*others, entry])
    if entry.evidence.needs:
        print(f"archetype: {source}: needs {entry.evidence.needs}", file=sys.stderr)
    page = to / f"{entry.id}.html"
    about = {"page": str(page), "id": entry.id, "needs": entry.evidence.needs or None}
    print_json(about) if as_json else print(page)


def _ids(only: str) -> list[str]:
    return [name.strip() for name in only.split(",") if name.strip()]


def _entry(source: str, name: str | None, ancestor: str, date: str, why: str) -> "Entry":
    # an unsupported part gives a grey card; a configuration that cannot be found is an error
    from dataclasses import replace
    from hashlib import sha256

    from archetype.convert.source import find_config, open_spec, read_config
    from archetype.errors import ArchetypeError, CheckpointError
    from archetype.families.registry import family_of
    from archetype.gallery.entries import Entry, Evidence, entries
    from archetype.io.hub import is_name
    from archetype.io.yaml import read_mapping

    repository = source.partition("@")[0] if is_name(source) else ""
    place = Path(source).resolve()
    folder = place.parent if place.name == "config.json" else place
    title = name or repository.rpartition("/")[2] or (folder.name if folder.is_dir() else place.stem)
    slug = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.") or "model"
    known = (entry for entry in entries().values() if repository and entry.repository == repository)
    entry = next(known, Entry(slug, title, repository, ""))
    options: dict[str, Any] = {"ancestor": ancestor, "date": date, "why": why, "name": name}
    entry = replace(entry, **{field: value for field, value in options.items() if value})
    config = find_config(Path(source))
    if config is None:
        return replace(entry, own=open_spec(source).dump(), spec="")
    values = read_mapping(config.file)
    entry = replace(entry, type=str(values.get("model_type")), spec="")
    facts = {"model": source if repository else folder.name, "sha256": sha256(config.file.read_bytes()).hexdigest()}
    is_registered = family_of(values, config.place) is not None
    try:
        if not is_registered:
            config.shapes()
    except CheckpointError:
        needs = f"the names and shapes of its tensors, because the type {entry.type} is not registered"
        return replace(entry, evidence=Evidence(facts, needs=needs))
    try:
        _, spec = read_config(config, warn=False)
    except ArchetypeError as error:
        said = f"needs support for its {error.place.rpartition(': ')[2]} ({error.cause})"
        needs = (error.cause if error.cause.startswith("needs ") else said).removeprefix("needs ")
        return replace(entry, evidence=Evidence(facts, needs=needs))
    places = None if is_registered else True  # inferring a type fails if a tensor maps to no parameter
    shapes_of = "header" if config.has_tensors else "transformers"
    reading = Evidence(facts, places=places, numbers_of=shapes_of, agrees=entry.evidence.agrees)
    return replace(entry, own=spec.replace(name=entry.id).dump(), evidence=reading)
