"""Arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer


def complete_presets(incomplete: str) -> list[str]:
    """Names of presets for shell completion; the shell itself completes files and folders."""
    from archetype.families import presets

    return [name for name in presets() if name.startswith(incomplete)]


def _check_device(context: typer.Context, name: str) -> str:
    """Refuse a device that this machine does not have, before a verb begins; auto and cpu need no look, nor torch."""
    if name not in ("auto", "cpu") and not context.resilient_parsing:  # which is when the shell completes
        from archetype.machine.device import resolve_device

        resolve_device(name)
    return name


SPEC_HELP = (
    "A preset, a YAML or JSON file, a run directory, a model folder or its config.json, a GGUF file, or "
    "owner/name[@revision]."
)
Spec = Annotated[str, typer.Argument(metavar="SPEC", help=SPEC_HELP, autocompletion=complete_presets)]
Specs = Annotated[list[str], typer.Argument(metavar="SPEC...", help=SPEC_HELP, autocompletion=complete_presets)]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="A run directory, a Hugging Face folder, a GGUF file, or owner/name[@revision] of huggingface.co.",
    ),
]
Exported = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run directory, a model folder, a GGUF file, owner/name[@revision], a preset or a specification.",
        autocompletion=complete_presets,
    ),
]
Dtype = Annotated[str | None, typer.Option(help="Type to compute in.  [default: as stored]")]
StoredDtype = Annotated[str | None, typer.Option(help="Convert the weights to this type.")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        "--quantization",
        help="int8, int4: matrices of 8 or 4 bits, in groups of 32; lossless: bfloat16 in 12.  [default: as stored]",
    ),
]
TEMPLATE_HELP = "A Jinja file, or chatml, gemma, llama-3, mistral, phi-3 or zephyr, in place of a model's own template."
Template = Annotated[Path | None, typer.Option("--chat-template", help=TEMPLATE_HELP)]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="Each text alone decides its logits, to the bit; prompts are read more slowly."
    ),
]
Device = Annotated[
    str, typer.Option(help="auto (a GPU where there is one), cpu, cuda, cuda:N or mps.", callback=_check_device)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="What the folder's files leave out or say otherwise."),
]
AcceptUnproved = Annotated[
    bool,
    typer.Option(
        "--accept-unproved", help="Read a family that is not registered though nothing proves what is assumed of it."
    ),
]
Output = Annotated[Path, typer.Option("--to", "-o", "--output", help="The folder to create; must not exist.")]
OptionalOutput = Annotated[Path | None, typer.Option("--to", "-o", "--output", help="The file or folder to create.")]
TEXT_HELP = "A text file, or a file of records (JSON, CSV, TSV, Parquet)"
Column = Annotated[
    str | None,
    typer.Option(help="Column of the text in a file of records.  [default: text, or the only one with texts]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
