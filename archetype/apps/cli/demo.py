"""The command `demo`: text, tokenizer, specification, cost, training, loss curve and generated text in one run."""

import math
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archetype.apps.cli.options import TEXT_HELP, Column, Json, OptionalOutput
from archetype.apps.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from archetype.estimate.report import CostReport
    from archetype.models.decoder.spec import Decoder
    from archetype.training.recipe import Recipe

VOCABULARY = 2048
BATCH_SIZE, LENGTH = 8, 128
PROMPT = "Return the "
LARGEST = 5  # modules whose parameters are shown
NEEDS = {"column": ("text",)}


def demo(
    text: Annotated[Path | None, typer.Option(help=f"{TEXT_HELP}.  [default: Python's own documentation]")] = None,
    column: Column = None,
    to: OptionalOutput = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="Training time in minutes, approximately.")] = 1.5,
    as_json: Json = False,
) -> None:
    """Train a small model on text from this machine, show its cost and loss, and generate."""
    out = console(stderr=True)
    with out.status("loading PyTorch"):
        import torch

        from archetype.api.causal_lm import CausalLM
        from archetype.api.functions import cost_report
        from archetype.apps.cli.progress import raise_if_interrupted, run_with_progress
        from archetype.data.library_text import library_text
        from archetype.data.text_files import read_joined
        from archetype.io.atomic import check_absent
        from archetype.training import metrics
        from archetype.training.setup import start

    folder = to or _free_folder(Path("runs/demo"))
    # before the tokenizer is trained and the machine measured, which takes a while
    check_absent(folder)
    source = f"the text of {text}" if text else "the docstrings and comments of Python's standard library"
    with out.status(f"reading {source}"):
        contents = read_joined(text, column) if text else library_text()
    out.print(f"[bold]Text[/]       {source}: {len(contents) / 1e6:.1f} million characters")
    spec = demo_spec()
    with out.status("measuring this machine"):
        recipe = demo_recipe(spec, minutes)
    with out.status(f"training a tokenizer of {VOCABULARY} tokens"):
        state = start(folder, recipe, torch.device("cpu"), contents)
    out.print(f"[bold]Tokenizer[/]  byte-level BPE, {VOCABULARY} tokens")
    _print_cost(out, cost_report(spec, BATCH_SIZE, LENGTH, "float32"), as_json)
    out.print(f"[bold]Training[/]   about {minutes:g} minutes; Ctrl-C stops after a step, and the run can be resumed")
    raise_if_interrupted(state, run_with_progress(state, curve_height=1, samples=False))
    pieces = CausalLM.load(folder).stream(PROMPT, max_new_tokens=120, temperature=0.7, seed=1)
    if as_json:
        last = metrics.last(state.run.metrics_file)
        print_json({"run": str(folder), "step": state.step, "last": last, "prompt": PROMPT, "text": "".join(pieces)})
        return
    # the text is the only standard output, besides the table of costs
    print(PROMPT, end="")
    for piece in pieces:
        print(re.sub(r"\s+", " ", piece), end="", flush=True)  # in one line
    print()
    out.print("\n[bold]Try next[/]")
    # after `make demo` it is not in PATH, so the commands shown have its path
    program = "archetype" if shutil.which("archetype") else sys.argv[0]
    for arguments, meaning in (
        (f'generate {folder} "The first argument"', "your own prompt"),
        (f"set {folder} num_layers=6 --to deeper.yaml", "another architecture, for `train --spec`"),
        (f"export {folder} --to {folder}-hf", "a folder that transformers loads"),
        (f"serve {folder} --open", _web_ui()),
    ):
        out.print(f"  {program} {arguments:<52} {meaning}", markup=False)


def _web_ui() -> str:
    from archetype.apps.serve.page import HOW_TO_BUILD, is_built

    return "the web UI, at http://127.0.0.1:8000/" if is_built() else f"the web UI; first {HOW_TO_BUILD}"


def _print_cost(out: "Console", report: "CostReport", as_json: bool) -> None:
    from archetype.table import Table, quantity, size

    flops, memory, total = report.flops["train"], report.memory["training_peak"], report.parameters["total"]
    out.print(
        f"[bold]Model[/]      {total:,} parameters; a training step of {BATCH_SIZE} x {LENGTH} tokens takes "
        f"{quantity(flops)}FLOPs and {size(memory)}; `archetype cost` prints the whole table"
    )
    largest = sorted(report.rows, key=lambda row: -row.parameters)[:LARGEST]
    rows = [(row.module, f"{row.parameters:,}", f"{row.parameters / total:.1%}") for row in largest]
    if not as_json:
        print(Table(("module", "parameters", "share"), rows))


def demo_spec() -> "Decoder":
    """Return a Llama-like decoder that trains in a minute or two on two cores."""
    from archetype.families.llama import llama

    return llama(
        name="demo-llama",
        num_layers=3,
        d_model=128,
        num_heads=4,
        num_kv_heads=2,
        d_ff=344,
        vocab_size=VOCABULARY,
        context_length=LENGTH,
        tied=True,
        std=0.05,
    )


def demo_recipe(spec: "Decoder", minutes: float) -> "Recipe":
    """Return a recipe with as many steps as this machine can run in the given time."""
    import torch

    from archetype.machine.allocation import keep_freed_memory
    from archetype.machine.device import resolve_dtype
    from archetype.training.datasets import TextData
    from archetype.training.optimizers import Muon
    from archetype.training.recipe import Recipe
    from archetype.training.schedules import Cosine
    from archetype.training.throughput import seconds_per_step

    keep_freed_memory()  # as training does, so that the measured speed is the run's
    recipe = Recipe(
        spec=spec.dump(),
        data=TextData(tokenizer="byte_bpe", vocab_size=VOCABULARY),
        batch_size=BATCH_SIZE,
        optimizer=Muon(learning_rate=0.01),
        dtype=resolve_dtype("auto", torch.device("cpu")),
    )
    steps = max(20, int(minutes * 60 / seconds_per_step(recipe, spec)))
    schedule = Cosine(warmup_steps=min(50, steps // 5))
    return recipe.replace(
        steps=steps, schedule=schedule, evaluate_every=math.ceil(steps / 3), checkpoint_every=math.ceil(steps / 4)
    )


def _free_folder(first: Path) -> Path:
    candidates = (first if n == 1 else first.with_name(f"{first.name}-{n}") for n in range(1, 10_000))
    return next(folder for folder in candidates if not folder.exists())
