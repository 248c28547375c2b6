"""Verbs that carry a model from one kind of folder to another."""

from pathlib import Path
from typing import Annotated

import typer

MODEL = typer.Argument(metavar="MODEL", help="A run directory or a Hugging Face folder.")


def load(
    model: Annotated[Path, MODEL],
    to: Annotated[Path, typer.Option(help="The run directory to make; must not exist.")],
    dtype: Annotated[str | None, typer.Option(help="Convert the weights to this type.")] = None,
) -> None:
    """Read a Hugging Face folder and keep it as a run directory, which every verb takes."""
    from archetype.checkpoint.tensors import dtype_of
    from archetype.language_model import load, save_run

    save_run(load(model, dtype_of(dtype)), to)
    print(f"wrote {to}")


def export(
    model: Annotated[Path, MODEL],
    to: Annotated[Path, typer.Option(help="The folder to make; must not exist.")],
    family: Annotated[str | None, typer.Option(help="gpt2 or llama.  [default: as loaded, or what fits]")] = None,
    dtype: Annotated[str | None, typer.Option(help="Convert the weights to this type.")] = None,
) -> None:
    """Write a model as a Hugging Face folder that transformers loads."""
    from archetype.checkpoint.tensors import dtype_of
    from archetype.language_model import export, load

    chosen = export(load(model, dtype_of(dtype)), to, family)
    print(f"wrote {to} as {chosen.format.architecture}")
