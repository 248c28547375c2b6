"""The verb that holds a folder's two readings against each other."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archetype.cli.models import CHANGES
from archetype.cli.output import console, print_json

if TYPE_CHECKING:
    from archetype.convert.parity import Parity


def parity(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="A Hugging Face folder, or owner/name.")],
    reference: Annotated[Literal["transformers"], typer.Option(help="What to compare with.")] = "transformers",
    dtype: Annotated[list[str] | None, typer.Option(help="May be given again.  [default: float32, bfloat16]")] = None,
    text: Annotated[str | None, typer.Option(help="What both read.  [default: tokens made up]")] = None,
    changes: Annotated[list[str] | None, CHANGES] = None,
    tolerance: Annotated[float | None, typer.Option(help="Of the largest magnitude.  [default: by the type]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare what Archetype and transformers compute from one folder, module by module; exit 1 where they differ."""
    from archetype.convert.parity import compare

    found = [compare(model, one, text, tolerance, changes or ()) for one in dtype or ("float32", "bfloat16")]
    if as_json:
        rows = [asdict(one) | {"agrees": one.agrees, "first": one.first and one.first.ours} for one in found]
        print_json({"folder": str(model), "reference": reference, "dtypes": rows})
    else:
        for one in found:
            _print(one)
    if not all(one.agrees for one in found):
        raise typer.Exit(1)


def _print(found: "Parity") -> None:
    from rich.table import Table

    table = Table(f"module, {found.dtype}", "of transformers", "difference", box=None, pad_edge=False)
    for module in found.modules:
        mark = "" if module.difference <= found.tolerance else "  <- beyond"
        table.add_row(module.ours, module.theirs, f"{module.difference:.1e}{mark}")
    out = console()
    out.print(table, markup=False)
    if found.left_out:
        out.print(f"not compared: {'; '.join(found.left_out)}", markup=False, soft_wrap=True)
    said = f"answers: largest difference {found.difference:.1e} of the largest magnitude"
    if found.kl is not None and found.top1 is not None:
        said += f", KL {found.kl:.1e} nats, the same likeliest at {found.top1:.1%}"
    out.print(said, markup=False, soft_wrap=True)
    if found.first is not None:
        out.print(f"first beyond {found.tolerance:g}: {found.first.ours} ({found.first.theirs})", markup=False)
