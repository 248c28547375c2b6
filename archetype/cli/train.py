"""The verb that trains: a recipe or flags to a run directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.cli.options import Json, OptionalOutput, complete_presets
from archetype.cli.output import print_json

if TYPE_CHECKING:
    from archetype.training.recipe import Recipe

SECTIONS = {  # of the options, in the help
    "Run": ("recipe", "to", "resume", "allow_changes", "assignments"),
    "Model and data": ("spec", "from_model", "text", "source", "target", "images", "tokenizer", "vocab_size"),
    "Optimization": (
        "steps", "batch_size", "micro_batch_size", "sequence_length", "learning_rate", "warmup_steps", "seed",
    ),
    "Machine": ("dtype", "device", "force"),
}  # fmt: skip


def train(
    recipe: Annotated[Path | None, typer.Option(help="A recipe file; flags replace what it says.")] = None,
    spec: Annotated[
        str | None,
        typer.Option(help="A preset or a specification file.  [default: llama-tiny]", autocompletion=complete_presets),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A UTF-8 text file; may be repeated.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="A file of source lines; may be repeated.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="A file of target lines; may be repeated.")] = None,
    images: Annotated[str | None, typer.Option(help="A .npz file of images and labels.")] = None,
    to: OptionalOutput = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run directory.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="bytes, characters, words, bpe, byte_bpe, or a folder.  [default: byte_bpe]")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of a tokenizer that is trained.  [default: 4096]")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.  [default: 1000]")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows a step.  [default: 16]")] = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens of a row.  [default: the model's context]")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The peak.  [default: 0.001]")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Steps to the peak.  [default: 100]")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and dropout.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Any other field of the recipe.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda:N or mps.")] = "auto",
    as_json: Json = False,
) -> None:
    """Train a model on text, pairs of texts or images; writes a run directory."""
    from archetype.cli.progress import raise_if_interrupted, run_with_progress
    from archetype.errors import SpecError
    from archetype.nn.device import resolve_device
    from archetype.training import setup

    flags: dict[tuple[str, ...], Any] = {
        ("spec",): spec,
        ("data", "kind"): "pairs" if source or target else "images" if images else None,
        ("data", "text"): tuple(text) if text else None,
        ("data", "source"): tuple(source) if source else None,
        ("data", "target"): tuple(target) if target else None,
        ("data", "file"): images,
        ("data", "tokenizer"): tokenizer,
        ("data", "vocab_size"): vocab_size,
        ("steps",): steps,
        ("batch_size",): batch_size,
        ("sequence_length",): sequence_length,
        ("optimizer", "learning_rate"): learning_rate,
        ("schedule", "warmup_steps"): warmup_steps,
        ("dtype",): dtype,
        ("seed",): seed,
    }
    if resume is not None:
        if recipe or to or assignments or any(value is not None for value in flags.values()):
            raise SpecError("--resume", "a resumed run keeps its recipe", "give --resume alone")
        state = setup.resume(resume, resolve_device(device))
    else:
        chosen = _recipe(recipe, flags, assignments or [])
        if to is None:
            raise SpecError("--to", "is missing", "name the run directory to create")
        state = setup.start(to, chosen, resolve_device(device))
    interrupted = run_with_progress(state)
    if as_json:
        from archetype.training.metrics import read

        measured = read(state.run.metrics_file)
        print_json({"run": str(state.run.folder), "step": state.step, "last": measured[-1] if measured else None})
    raise_if_interrupted(state, interrupted)


def _recipe(file: Path | None, flags: dict[tuple[str, ...], Any], assignments: list[str]) -> "Recipe":
    """A recipe file with the flags that were given in place of what it says."""
    from archetype.errors import ArchetypeError
    from archetype.io.yaml import read_mapping
    from archetype.spec.edit import put
    from archetype.training.recipe import Recipe

    data: dict[str, Any] = read_mapping(file) if file else {}
    for path, value in flags.items():
        if value is not None:
            section = data
            for key in path[:-1]:
                section = section.setdefault(key, {})
            section[path[-1]] = value
    put(data, assignments)
    try:
        return Recipe.parse(data)
    except ArchetypeError as error:
        raise error.at(str(file)) if file else error from None
