"""The command `transplant`: change the architecture of a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from archetype.apps.cli.options import TEXT_HELP, Json, Model, Output
from archetype.apps.cli.output import print_json

EXCLUDES = {"spec": ("changes",)}


def transplant(
    model: Model,
    to: Output,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH=VALUE...", help="Changes of the specification, as for `archetype set`."),
    ] = None,
    spec: Annotated[
        str | None, typer.Option("--spec", metavar="SPEC", help="A whole new specification, instead of changes.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST|WAY",
            help="The donor's layer of each new layer, such as 0-5,5,6-11; or which layers to keep: influence on the "
            "text, first or random.  [default: spread evenly]",
        ),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="SUBJECT=WAY",
            help="How weights become one or are chosen, such as heads=first, experts=merged or cut=magnitude; "
            "repeatable. docs/guide/surgery.md lists them.",
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"{TEXT_HELP}, to compare on.  [default: of Python's library]")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE|FOLDER", help="Another tokenizer, whose tokens begin from the donor's.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of new weights.")] = 0,
    as_json: Json = False,
) -> None:
    """Change the architecture of a trained model, keep its weights, and prove how it starts.

    The report says where each tensor comes from, what is promised of the start, how far the new model is from the donor
    on a text, and what both cost. FOLDER is a run directory; archetype train --from FOLDER trains it on.
    """
    from archetype.api.loading import load
    from archetype.api.transplanting import changed_spec, save, transplant
    from archetype.data.text_files import read_texts
    from archetype.io.atomic import check_absent
    from archetype.surgery.choices import read_choices, read_layers
    from archetype.tokenizers.registry import open_tokenizer

    check_absent(to)  # and all that is written here, before a model is loaded
    sources, choices = None if layers is None else read_layers(layers), read_choices(ways or [])
    words = None if text is None else "\n".join(read_texts(text))
    other = None if tokenizer is None else open_tokenizer(tokenizer)
    donor = load(model)
    new, assignments = changed_spec(donor, changes or [], spec, other)
    done = transplant(donor, new, words, sources, choices, seed, other, assignments)
    save(done, to, str(model))
    if as_json:
        print_json(done.report.record())
        return
    for line in done.report.lines():
        print(line)
    print(f"wrote {to}")
