"""The verb that trains: a recipe or flags to a run directory."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from archetype.apps.cli.options import Device, Json, OptionalOutput, complete_presets
from archetype.apps.cli.output import print_json

CHOSEN = "[default: chosen to fit the text]"
HERE = "here"  # what --plan alone stands for
OPTIONAL_VALUES = {"--plan": (HERE, r"\d+x\d+")}  # of options: what one without a value means, and what a value is

SECTIONS = {  # of the options, in the help
    "Run": ("recipe", "to", "resume", "track", "allow_changes", "assignments"),
    "Model and data": (
        "spec", "start_from", "trainable", "adapter", "new_tokens", "text", "source", "target", "images",
        "labelled", "chat", "preferences", "tokenizer", "vocab_size",
    ),
    "Optimization": (
        "steps", "tokens", "flops", "minutes", "patience", "batch_size", "micro_batch_size", "sequence_length",
        "learning_rate", "warmup_steps", "seed",
    ),
    "Machine": ("dtype", "device", "force", "plan", "gpu", "find_rate"),
}  # fmt: skip


def train(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="UTF-8 files, folders or patterns, as --text.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe file; flags replace what it says.")] = None,
    spec: Annotated[
        str | None,
        typer.Option(help="A preset or a specification file.  [default: llama-tiny]", autocompletion=complete_presets),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="MODEL", help="Go on from the weights and the tokenizer of a model."),
    ] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option("--train", metavar="PATTERN", help="Which parameters learn, such as 'blocks.[20-23].*'."),
    ] = None,
    adapter: Annotated[
        Literal["lora", "dora"] | None,
        typer.Option(help="Low-rank changes learn, and the model stays; --set adapter.rank=16 and others."),
    ] = None,
    new_tokens: Annotated[
        str | None,
        typer.Option("--add-tokens", metavar="A,B|FILE", help="Further tokens, by commas or a line each of a file."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text file, .jsonl, .parquet, folder, pattern or hf:DATASET; may be repeated."),
    ] = None,
    source: Annotated[list[str] | None, typer.Option(help="A file of source lines; may be repeated.")] = None,
    target: Annotated[list[str] | None, typer.Option(help="A file of target lines; may be repeated.")] = None,
    images: Annotated[
        str | None, typer.Option(help="A .npz file of images and labels, or a folder of them by class.")
    ] = None,
    labelled: Annotated[
        list[str] | None, typer.Option(help="JSON lines or CSV of text and label; may be repeated.")
    ] = None,
    chat: Annotated[list[str] | None, typer.Option(help="JSON lines of messages; may be repeated.")] = None,
    preferences: Annotated[
        list[str] | None, typer.Option(help="JSON lines of prompt, chosen and rejected; may be repeated.")
    ] = None,
    to: OptionalOutput = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with this run; with --steps, to so many in all.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help=f"bytes, characters, words, bpe, byte_bpe, or a folder.  {CHOSEN}")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help=f"Of a tokenizer that is trained.  {CHOSEN}")] = None,
    steps: Annotated[int | None, typer.Option(help=f"Optimizer steps.  {CHOSEN}")] = None,
    tokens: Annotated[float | None, typer.Option(min=1, help="In place of --steps: tokens to train on.")] = None,
    flops: Annotated[float | None, typer.Option(min=1, help="In place of --steps: FLOPs of training.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="In place of --steps: about how long.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows a step.  [default: 16]")] = None,
    micro_batch_size: Annotated[
        int | None, typer.Option(help="Rows computed at once; gradients are accumulated.  [default: all of a batch]")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens of a row.  [default: the model's context, where the text is long enough]")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The peak.  [default: chosen by the width]")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Steps to the peak.  [default: a tenth]")] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="End after so many evaluations without a lower held-out (validation) loss.  [default: never]"
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.  [default: auto]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and dropout.  [default: 0]")] = None,
    track: Annotated[
        list[str] | None, typer.Option(help="Also report to tensorboard, wandb, trackio or mlflow; may be repeated.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any other field of the recipe; spec.PATH edits the model's."),
    ] = None,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Resume although recipe or data were changed.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train even if a step is expected to take more memory than is free.")
    ] = False,
    device: Device = "auto",
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="[NODESxGPUS]",
            help="Only print cost, memory and time here, or how this would train on such a cluster, as 16x8.",
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="The devices of the cluster.")] = "H100-SXM",
    find_rate: Annotated[
        bool,
        typer.Option("--find-rate", help="Only try rising learning rates and suggest one; --to FILE.png draws it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a model on text, pairs of texts or images; writes a run directory."""
    from archetype.errors import SpecError

    if to is None and resume is None and plan is None and not find_rate:
        raise SpecError("--to", "is missing", "name the run directory to create, such as --to runs/first")
    from archetype.apps.cli.progress import raise_if_interrupted, run_with_progress, tokenization_bar
    from archetype.loading import open_pretrained
    from archetype.machine.device import resolve_device
    from archetype.training import setup
    from archetype.training.defaults import Budget, assemble
    from archetype.training.processes import launched
    from archetype.training.state import TrainState

    files = (*(text or ()), *(texts or ()))
    kinds = {
        "pairs": source or target, "images": images, "labelled_text": labelled, "chat": chat,
        "preferences": preferences,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "spec": spec,
        "data.kind": next((kind for kind, value in kinds.items() if value), None),
        "data.text": files or None,
        "data.source": tuple(source) if source else None,
        "data.target": tuple(target) if target else None,
        "data.file": images,
        "data.examples": tuple(labelled or chat or preferences or ()) or None,
        "data.tokenizer": tokenizer,
        "data.vocab_size": vocab_size,
        "trainable": tuple(trainable) if trainable else None,
        "adapter.kind": adapter,
        "add_tokens": _names(new_tokens) if new_tokens else None,
        "batch_size": batch_size,
        "micro_batch_size": micro_batch_size,
        "sequence_length": sequence_length,
        "optimizer.learning_rate": learning_rate,
        "schedule.warmup_steps": warmup_steps,
        "patience": patience,
        "trackers": tuple(track) if track else None,
        "dtype": dtype,
        "seed": seed,
    }
    budget = Budget(tokens, flops, minutes)
    if budget and steps is not None:
        raise SpecError("--steps", "stands beside --tokens, --flops or --minutes, which decide it", "give one of them")
    if plan is not None or find_rate:
        from archetype.apps.cli.plan import print_plan, print_plan_here, print_rates
        from archetype.training.resolve import resolve_recipe

        if resume is not None:
            raise SpecError("--resume", "stands beside --plan or --find-rate, which are for a new run", "leave it out")

        chosen, _ = assemble(recipe, fields | {"steps": steps}, assignments or [], budget)
        if plan not in (None, HERE):
            print_plan(chosen, plan, gpu, as_json)
            return
        here = resolve_device(device)
        pretrained = None if start_from is None else open_pretrained(start_from, fields)
        resolved = resolve_recipe(to or Path("run"), chosen, here, None, True, budget, pretrained)
        if find_rate:
            print_rates(resolved, here, to, as_json)
        else:
            print_plan_here(resolved, here, as_json)
        return
    if resume is not None:
        others = (recipe, to, start_from, budget or None, *fields.values())
        if any(value is not None for value in others):
            raise SpecError(
                "--resume", "a resumed run keeps its recipe", "give it alone, or with --steps or --set parallel.FIELD=N"
            )
    with launched(resolve_device(device)) as (processes, own_device):

        def begin() -> TrainState:
            if resume is not None:
                return setup.resume(resume, own_device, steps, allow_changes, force, assignments or (), processes)
            assert to is not None
            pretrained = None if start_from is None else open_pretrained(start_from, fields)
            chosen, said = assemble(recipe, fields | {"steps": steps}, assignments or [], budget)
            state = setup.start(to, chosen, own_device, None, force, budget, pretrained, processes)
            state.notes = (*([f"chosen: {said}"] if said else []), *state.notes)
            return state

        folder = resume or to
        assert folder is not None
        with tokenization_bar():
            state = processes.begin(begin, lambda: setup.resume(folder, own_device, force=True, processes=processes))
        interrupted = run_with_progress(state)
    if as_json and processes.is_main:
        from archetype.training.metrics import read

        measured = [line for line in read(state.run.metrics_file) if "sample" not in line]
        print_json({"run": str(state.run.folder), "step": state.step, "last": measured[-1] if measured else None})
    raise_if_interrupted(state, interrupted)


def _names(value: str) -> tuple[str, ...]:
    """Names by commas, or the lines of a file."""
    from archetype.io.text import read_text

    return tuple(filter(None, read_text(Path(value)).splitlines() if Path(value).is_file() else value.split(",")))
