"""The command `draw`: picture of an architecture, or of the difference between two. It does not load torch."""

from typing import Annotated

import typer

from archetype.apps.cli.options import Json, OptionalOutput, Spec, complete_presets
from archetype.apps.cli.output import print_json

EXCLUDES = {"as_json": ("to",)}


def draw(
    source: Spec,
    other: Annotated[
        str | None,
        typer.Argument(metavar="OTHER", help="Specification to compare with.", autocompletion=complete_presets),
    ] = None,
    measure: Annotated[
        str, typer.Option(help="Quantity of the bars: parameters, active, flops or bytes.")
    ] = "parameters",
    batch: Annotated[int, typer.Option(min=1, help="Batch size, for FLOPs.")] = 1,
    length: Annotated[
        int | None, typer.Option(min=1, help="Sequence length.  [default: the shortest context of the models]")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Data type of the weights, for bytes.")] = "bfloat16",
    aspect: Annotated[
        str | None,
        typer.Option(metavar="W:H", help="Aspect ratio, such as 16:9.  [default: as drawn]"),
    ] = None,
    to: OptionalOutput = None,
    as_json: Json = False,
) -> None:
    """Draw an architecture, or the difference of two, as SVG, PNG or PDF, with shapes and costs.

    Repeated blocks are folded; the thick line is the residual stream. Writes NAME.svg, or the file given by -o: .svg,
    .png, .pdf, or .json with every box and wire. For two specifications, parts that were added, removed or replaced
    are colored, changed sizes are tinted, and each differing field is listed.
    """
    from pathlib import Path

    from archetype.api import functions as api
    from archetype.convert.source import SUFFIXES

    drawing = api.draw(source, other, measure, batch, length, dtype, aspect)  # type: ignore[arg-type]  # refused if unknown
    if as_json:
        print_json(drawing.scene.to_json())
        return
    paths = [Path(name) for name in (source, other) if name]
    names = [path.stem if path.suffix in SUFFIXES else path.name for path in paths]
    print(drawing.save(to or Path(f"{'-'.join(names)}.svg")))
