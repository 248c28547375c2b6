"""Arguments and options shared by several commands."""

import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer


def complete_presets(incomplete: str) -> list[str]:
    """Return the names of presets for shell completion. The shell itself completes files and folders."""
    from archetype.families import presets

    return [name for name in presets() if name.startswith(incomplete)]


def _check_device(context: typer.Context, name: str) -> str:
    # before a command begins, so that it does not load a model first; auto and cpu do not need torch for this
    if name not in ("auto", "cpu") and not context.resilient_parsing:  # resilient: during shell completion
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
        help="A run directory, a Hugging Face folder, a GGUF file, or owner/name[@revision] on huggingface.co.",
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
Dtype = Annotated[str | None, typer.Option(help="Data type of the computation.  [default: as stored]")]
StoredDtype = Annotated[str | None, typer.Option(help="Data type to convert the weights to.")]
StateDtype = Annotated[
    str | None,
    typer.Option(
        help="Data type of the KV cache: int8, float16, bfloat16 or float32; weights, arithmetic and recurrent states "
        "keep theirs.  [default: as the weights]"
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        "--quantization",
        help="Weight format: int8 or int4 (groups of 32), or lossless (bfloat16 in 12 bits).  [default: as stored]",
    ),
]
TEMPLATE_HELP = (
    "Chat template instead of the model's own: a Jinja file, chatml, gemma, llama-3, mistral, phi-3, rwkv-world or "
    "zephyr."
)
Template = Annotated[Path | None, typer.Option("--chat-template", help=TEMPLATE_HELP)]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="Make the logits of a sequence independent of its batch, to the bit; prefill is slower."
    ),
]
Device = Annotated[
    str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:N or mps.", callback=_check_device)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set or override a value of the model's config; may be repeated."),
]
AcceptUnproved = Annotated[
    bool,
    typer.Option(
        "--accept-unproved",
        help="Load an unregistered model family, although its inferred architecture is not verified.",
    ),
]
Output = Annotated[Path, typer.Option("--to", "-o", "--output", help="Folder to create; must not exist.")]
OptionalOutput = Annotated[Path | None, typer.Option("--to", "-o", "--output", help="File or folder to create.")]
TEXT_HELP = "A text file, or a file of records (JSON, CSV, TSV, Parquet)"
Column = Annotated[
    str | None,
    typer.Option(help="Text column of a record file.  [default: text, or the only text column]"),
]


def _limit_time(context: typer.Context, minutes: float | None) -> None:
    if minutes is not None and not context.resilient_parsing:
        from archetype.machine.time_budget import time_budget

        budget = context.with_resource(time_budget(minutes))
        context.call_on_close(lambda: budget.has_ended and print(f"{budget}", file=sys.stderr))


MINUTES: dict[str, Any] = {"min": 0.001, "max": 1e6, "callback": _limit_time, "expose_value": False}
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", **MINUTES, help="Time budget in minutes; when it ends, the result is of what was done."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Opening(NamedTuple):
    """Options for opening a model."""

    dtype: Dtype = None
    weights: Weights = None
    overrides: Overrides = None
    accept_unproved: AcceptUnproved = False
    device: Device = "auto"

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `archetype.load`."""
        return self._asdict() | {"overrides": self.overrides or ()}
