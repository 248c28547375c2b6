"""The command `inspect`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archetype.apps.cli.options import Device, Dtype, Json, Model
from archetype.apps.cli.output import print_device, print_json

if TYPE_CHECKING:
    from archetype.inspection import View

EXCLUDES = {"corrupt": ("view", "layer", "head")}
OUTPUT_HELP = "Output file: a picture (.png, .svg), data (.json) or tensors (.safetensors)."


def inspect(
    model: Model,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="Input text; for an image model, an image file or an .npz file (its first image)."
        ),
    ],
    view: Annotated[
        str,
        typer.Option(help="View: summary, attention, lens, residual, experts, recurrent or attribution."),
    ] = "summary",
    layer: Annotated[
        str | None, typer.Option(help="Layer index, or path such as encoder.blocks.3.  [default: all]")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Attention head; shows its scores, masked scores and weights.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Target text of an encoder-decoder.  [default: the generated target]")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="Token whose logit is attributed.  [default: the most likely token]")
    ] = None,
    position: Annotated[
        int, typer.Option(help="Position whose next-token logit is attributed; negative counts from the end.")
    ] = -1,
    corrupt: Annotated[
        str | None,
        typer.Option(help="Corrupted text with the same number of tokens, for activation patching."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--to", "-o", "--output", help=OUTPUT_HELP)] = None,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Show what happens inside a model while it reads a text.

    Views: attention by layer and head, logit lens, contributions to the residual stream, expert routing, states and
    gates of recurrent layers, and attribution of a logit.
    """
    from archetype.api.functions import load
    from archetype.api.image_encoder import ImageEncoder
    from archetype.errors import SpecError, nearest
    from archetype.inspection.inspection import VIEWS
    from archetype.inspection.view import SUFFIXES

    # all settings are checked before a large model is loaded
    if view not in VIEWS:
        raise SpecError("--view", f"'{view}' is not a view", nearest(view, VIEWS))
    if output is not None and output.suffix not in SUFFIXES:
        raise SpecError(str(output), "the file extension is not a known format", f"end it in {', '.join(SUFFIXES)}")
    if view != "attribution" and (token is not None or position != -1):
        option = "--position" if token is None else "--token"
        raise SpecError(option, "applies to attributions only", "add --view attribution")
    if view == "attribution" and head is not None:
        raise SpecError("--head", "cannot be combined with --view attribution, which shows all heads", "remove it")
    lm = load(model, dtype, device)
    inspection = lm.inspect(lm.images(text)[0] if isinstance(lm, ImageEncoder) else text, target)
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
