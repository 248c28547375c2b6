"""Verbs on specifications alone; none of them loads torch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from archetype.cli.cost import cost
from archetype.cli.output import console, print_json

__all__ = ["cost", "diff", "list_", "schema", "set_", "show"]

SOURCE = typer.Argument(metavar="SPEC", help="A preset, a YAML or JSON file, a run directory or a model folder.")
JSON = typer.Option("--json", help="Print one JSON object.")


def list_(as_json: Annotated[bool, JSON] = False) -> None:
    """List the presets with their family, size and source."""
    from archetype.cost import total_parameters
    from archetype.families import presets

    rows: list[dict[str, Any]] = []
    for name, (family, preset) in presets().items():
        spec = preset.make()
        counted = total_parameters(spec)
        rows.append(
            {"name": name, "family": family.name, "kind": spec.kind, "parameters": counted, "source": preset.source}
        )
    if as_json:
        print_json({"presets": rows})
        return
    from rich.table import Table

    table = Table("preset", "family", "kind", "source", box=None, pad_edge=False)
    table.add_column("parameters", justify="right")
    for row in rows:
        table.add_row(row["name"], row["family"], row["kind"], row["source"], f"{row['parameters']:,}")
    console().print(table)


def show(
    source: Annotated[str, SOURCE],
    full: Annotated[bool, typer.Option("--full", help="Write out every default.")] = False,
    reading: Annotated[
        bool, typer.Option("--reading", help="Print what the reading of a model folder rests on instead.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print a specification as the file that would describe it."""
    from archetype.convert.source import open_spec
    from archetype.io.yaml import mapping_to_yaml

    if reading:
        _print_reading(Path(source), as_json)
        return

    data = open_spec(source).dump(full=full)
    if as_json:
        print_json(data)
    else:
        print(mapping_to_yaml(data), end="")


def _print_reading(folder: Path, as_json: bool) -> None:
    """Of a family that is not registered: what was recognized, assumed, not understood and left out."""
    from dataclasses import asdict

    from archetype.convert.source import read_hf_spec
    from archetype.errors import SpecError
    from archetype.io import hub

    folder = hub.local(folder)
    if not (folder / "config.json").is_file():
        raise SpecError(str(folder), "is no model folder with a config.json", "leave --reading out")
    family, _ = read_hf_spec(folder, warn=False)
    if as_json:
        print_json({"family": family.name, "reading": family.reading and asdict(family.reading)})
    elif family.reading is None:
        print(f"{family.name} is a family known here: every key is used, or ignored on purpose")
    else:
        print(family.reading.table(family.name))


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A specification.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print every field in which two specifications differ."""
    from archetype.convert.source import open_spec
    from archetype.spec import differences

    changes = differences(open_spec(first), open_spec(second))
    if as_json:
        print_json({"differences": [{"path": path, "a": a, "b": b} for path, a, b in changes]})
        return
    for path, a, b in changes:
        print(f"{path}: {a} -> {b}")
    if not changes:
        print("no difference")


def set_(
    source: Annotated[str, SOURCE],
    assignments: Annotated[list[str], typer.Argument(metavar="PATH=VALUE...", help="Such as num_layers=6.")],
    to: Annotated[Path | None, typer.Option(help="Write to this file instead of standard output.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print a changed copy of a specification, checked anew."""
    from archetype.convert.source import open_spec
    from archetype.spec import assign, to_json, to_yaml

    changed = assign(open_spec(source), assignments)
    text = to_json(changed) if as_json or (to and to.suffix == ".json") else to_yaml(changed)
    if to is None:
        print(text, end="")
    else:
        from archetype.io import atomic

        atomic.write_bytes(to, text.encode())


def schema() -> None:
    """Print the JSON Schema of specification files, for editors."""
    from archetype.spec import json_schema

    print_json(json_schema())
