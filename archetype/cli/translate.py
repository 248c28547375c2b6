"""The verb that turns source texts into target texts."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from archetype.cli.output import print_json

AT_ONCE = 512  # lines of standard input that are read before the first is answered


def translate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A run directory of an encoder-decoder.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT...", help="One or several; without one, standard input's lines.")
    ] = None,
    num_beams: Annotated[int | None, typer.Option(help="Continuations followed; 1 is greedy.  [default: 5]")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="0 favours short targets.  [default: 1.0]")] = None,
    max_extra_tokens: Annotated[
        int | None, typer.Option(help="At most so many tokens beyond the source's.  [default: 50]")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Type to compute in.  [default: as stored]")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write the target of each source text, a line each."""
    from archetype.generate.beam import Beam
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    given = {"num_beams": num_beams, "length_penalty": length_penalty, "max_extra_tokens": max_extra_tokens}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    Beam.parse(settings)  # a wrong setting is told before a model is read
    lm = load(model, dtype_of(dtype), device)
    sources = texts or _lines()
    found: list[str] = []
    for start in range(0, len(sources), AT_ONCE):
        targets = lm.translate(sources[start : start + AT_ONCE], **settings)
        found += targets
        if not as_json:
            print(*(" ".join(target.splitlines()) for target in targets), sep="\n", flush=True)
    if as_json:
        print_json({"targets": [{"source": s, "target": t} for s, t in zip(sources, found, strict=True)]})


def _lines() -> list[str]:
    """The lines of standard input, as those of a file that a model is trained on."""
    from archetype.io.text import decode_text

    text = decode_text(sys.stdin.buffer.read(), "standard input").replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []
