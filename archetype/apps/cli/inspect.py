"""The verb `inspect`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archetype.apps.cli.options import Device, Dtype, Json, Model
from archetype.apps.cli.output import print_device, print_json

if TYPE_CHECKING:
    from archetype.inspection import View

EXCLUDES = {"corrupt": ("view", "layer", "head")}
OUTPUT_HELP = "A picture (.png, .svg), data (.json) or tensors (.safetensors) to write."


def inspect(
    model: Model,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What it reads; for images a file of one, or .npz, whose first is.")
    ],
    view: Annotated[
        str,
        typer.Option(help="summary, attention, lens, residual, experts, recurrent or attribution."),
    ] = "summary",
    layer: Annotated[
        str | None, typer.Option(help="Its number, or its path such as encoder.blocks.3.  [default: all]")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Of the layer's attention: its scores, masked scores, weights.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of an encoder-decoder.  [default: what it writes itself]")] = None,
    token: Annotated[
        str | None, typer.Option(help="Whose logit is attributed to parts.  [default: the likeliest]")
    ] = None,
    position: Annotated[int, typer.Option(help="After which it is attributed, from the end where negative.")] = -1,
    corrupt: Annotated[
        str | None,
        typer.Option(help="A text of as many tokens: which activation restores the first text's answer in it."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--to", "-o", "--output", help=OUTPUT_HELP)] = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show what happens inside a model while it reads a text.

    Attention by layer and head, what each layer would answer (logit lens), the residual stream and what each part adds
    to it, routing of experts, states and gates of recurrent layers, and a logit as a sum over parts.
    """
    from archetype.api.functions import load
    from archetype.errors import SpecError, nearest
    from archetype.inspection.inspection import VIEWS
    from archetype.inspection.view import SUFFIXES

    if view not in VIEWS:
        raise SpecError("--view", f"there is no {view}", nearest(view, VIEWS))
    if output is not None and output.suffix not in SUFFIXES:
        raise SpecError(str(output), "its name says no format", f"end it in {', '.join(SUFFIXES)}")
    if view != "attribution" and (token is not None or position != -1):
        option = "--position" if token is None else "--token"
        raise SpecError(option, "belongs to attributions", "add --view attribution")
    if view == "attribution" and head is not None:
        raise SpecError("--head", "an attribution has all heads of its --layer", "leave it out")
    lm = load(model, dtype, device)
    inspection = lm.inspect(lm.images(text)[0] if lm.spec.reads_images else text, target)
    shown: View
    if corrupt is not None:
        shown = inspection.patching(lm.inputs(corrupt, target))
    elif view == "attribution":
        shown = inspection.attribution(token, position, layer)
    else:
        shown = inspection.view(view, layer, head)
    if output is not None:
        shown.save(output)
    if as_json:
        print_json(shown.record())
        return
    print_device(lm.model.device)
    print(shown.table() if output is None else output)
