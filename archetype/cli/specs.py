"""Verbs on specifications alone; none of them loads torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.cli.output import console, print_json, quantity, size

if TYPE_CHECKING:
    from archetype.cost import Report

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
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print a specification as the file that would describe it."""
    from archetype.families.source import open_spec
    from archetype.spec.io import mapping_to_yaml

    data = open_spec(source).dump(full=full)
    if as_json:
        print_json(data)
    else:
        print(mapping_to_yaml(data), end="")


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A specification.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another.")],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print every field in which two specifications differ."""
    from archetype.families.source import open_spec
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
    from archetype.families.source import open_spec
    from archetype.spec import assign, to_json, to_yaml

    changed = assign(open_spec(source), assignments)
    text = to_json(changed) if as_json or (to and to.suffix == ".json") else to_yaml(changed)
    if to is None:
        print(text, end="")
    else:
        from archetype.checkpoint import durable

        durable.write_bytes(to, text.encode())


def schema() -> None:
    """Print the JSON Schema of specification files, for editors."""
    from archetype.spec import json_schema

    print_json(json_schema())


def cost(
    source: Annotated[str, SOURCE],
    batch: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 1,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of each row.  [default: the context]")] = None,
    dtype: Annotated[str, typer.Option(help="Type of weights and state.")] = "bfloat16",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print what a specification costs: parameters, FLOPs, state and memory, by module."""
    from archetype.cost import report
    from archetype.families.source import open_spec

    counted = report(open_spec(source), batch, length, dtype)
    if as_json:
        print_json(counted.to_json())
    else:
        print_cost(counted)


def print_cost(counted: "Report") -> None:
    """The table by module, and the sums below it."""
    from rich.table import Table

    total, flops = counted.parameters["total"], counted.flops
    table = Table(box=None, pad_edge=False)
    table.add_column("module")
    for heading in ("parameters", "share", "forward FLOPs", "decode FLOPs"):
        table.add_column(heading, justify="right")
    for row in counted.rows:
        share = f"{row.parameters / total:.1%}" if row.parameters else ""
        cells = (f"{row.parameters:,}" if row.parameters else "", share, _flops(row.forward), _flops(row.decode))
        table.add_row(row.module, *cells)
    table.add_section()
    table.add_row("total", f"{total:,}", "", _flops(flops["forward"]), _flops(flops["decode"]))
    out = console()
    out.print(table)
    rows = f"{counted.batch} x {counted.length:,} tokens"
    out.print(f"\ntraining step   {_flops(flops['train'])}FLOPs for {rows} (attention counted in full)")
    out.print(f"weights         {size(counted.memory['weights'])} in {counted.dtype}")
    per_token, whole = size(counted.state["bytes_per_token"]), size(counted.state["bytes"])
    out.print(f"state           {per_token} a token, {whole} for {rows}")
    out.print(
        f"training memory {size(counted.memory['training'])} for weights, gradients and AdamW in float32, "
        "before activations"
    )


def _flops(count: int) -> str:
    return quantity(count) if count else ""
