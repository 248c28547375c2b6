"""Verbs that carry a model from one kind of folder to another."""

from pathlib import Path
from typing import Annotated, Literal

import typer

CHANGES = typer.Option("--set", metavar="PATH=VALUE", help="What the folder's files do not say, or say otherwise.")
MODEL = typer.Argument(metavar="MODEL", help="A run directory, a Hugging Face folder, or owner/name.")


def load(
    model: Annotated[Path, MODEL],
    to: Annotated[Path, typer.Option(help="The run directory to make; must not exist.")],
    dtype: Annotated[str | None, typer.Option(help="Convert the weights to this type.")] = None,
    pickled: Annotated[bool, typer.Option("--pickled", help="Also read pytorch_model.bin; only tensors.")] = False,
    changes: Annotated[list[str] | None, CHANGES] = None,
) -> None:
    """Read a Hugging Face folder, or a model of huggingface.co, and keep it as a run directory, as every verb takes."""
    from archetype.io.tensors import dtype_of
    from archetype.loading import load, save_run

    save_run(load(model, dtype_of(dtype), allow_pickle=pickled, overrides=changes or ()), to)
    print(f"wrote {to}")


def export(
    model: Annotated[Path, MODEL],
    to: Annotated[Path, typer.Option(help="The folder to make; must not exist.")],
    family: Annotated[str | None, typer.Option(help="Such as llama.  [default: as loaded, or what fits]")] = None,
    format: Annotated[Literal["hf", "gguf"], typer.Option(help="hf for transformers, gguf for llama.cpp.")] = "hf",
    dtype: Annotated[str | None, typer.Option(help="Convert the weights to this type.")] = None,
) -> None:
    """Write a model as a folder that transformers, or llama.cpp, loads; it is read back and compared."""
    from archetype.io.tensors import dtype_of
    from archetype.loading import export, load

    lm = load(model, dtype_of(dtype))
    chosen = export(lm, to, family, format=format)
    name = chosen.format.architecture_of(lm.spec) if format == "hf" else f"GGUF of {chosen.name}"
    print(f"wrote {to} as {name}, reloaded and compared")
