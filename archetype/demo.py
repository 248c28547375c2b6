"""The whole way once: text, tokenizer, specification, cost, training, loss curve, generated text."""

import time
from pathlib import Path

import torch
from rich.console import Console

from archetype import cost
from archetype.checkpoint.durable import refuse_existing
from archetype.cli.generate import print_stream
from archetype.cli.output import console
from archetype.cli.specs import print_cost
from archetype.cli.train import raise_if_interrupted, run_with_progress
from archetype.data.library_text import library_text
from archetype.data.text import read_text
from archetype.families.llama import llama
from archetype.language_model import load
from archetype.model import build
from archetype.spec import ModelSpec
from archetype.train.objective import next_token_loss
from archetype.train.optimizer import build_optimizer
from archetype.train.precision import autocast, resolved
from archetype.train.recipe import AdamW, Cosine, Data, Recipe
from archetype.train.session import start

VOCABULARY = 2048
BATCH_SIZE, LENGTH = 16, 128
PROMPT = "Return the "


def demo(text: Path | None, to: Path | None, minutes: float) -> None:
    """Train a small decoder and let it speak.

    Args:
        text: a UTF-8 file (absent: the documentation of the running Python's standard library).
        to: the run directory to make (absent: the first free one of runs/demo, runs/demo-2, ...).
        minutes: about how long to train; the number of steps follows from this machine's speed.
    """
    out = console(stderr=True)
    folder = to or _free_folder(Path("runs/demo"))
    refuse_existing(folder)
    source = f"the text of {text}" if text else "the docstrings and comments of Python's standard library"
    with out.status(f"reading {source}"):
        contents = read_text(text) if text else library_text()
    out.print(f"[bold]Text[/]       {source}: {len(contents) / 1e6:.1f} million characters")

    spec = demo_spec(VOCABULARY)
    dtype = resolved("auto", torch.device("cpu"))
    with out.status("measuring this machine"):
        steps = max(20, int(minutes * 60 / seconds_per_step(spec, dtype)))
    recipe = Recipe(
        spec=spec.dump(),
        data=Data(tokenizer="byte_bpe", vocab_size=VOCABULARY),
        batch_size=BATCH_SIZE,
        steps=steps,
        optimizer=AdamW(learning_rate=3e-3),
        schedule=Cosine(warmup=min(50, steps // 5)),
        dtype=dtype,
        evaluate_every=max(10, steps // 5),
        checkpoint_every=max(10, steps // 5),
    )
    with out.status(f"training a tokenizer of {VOCABULARY} tokens"):
        session = start(folder, recipe, torch.device("cpu"), contents)
    tokens = len(session.corpus.training)
    out.print(f"[bold]Tokenizer[/]  byte-level BPE, {VOCABULARY} tokens; the text is {tokens:,} of them to train on")
    out.print(f"[bold]Model[/]      {spec.name}: what it costs, for {BATCH_SIZE} rows of {LENGTH} tokens\n")
    print_cost(cost.report(spec, BATCH_SIZE, LENGTH, "float32"))
    out.print(f"\n[bold]Training[/]   {steps} steps, about {minutes:g} minutes, computing in {dtype}\n")
    raise_if_interrupted(session, run_with_progress(session))
    out.print("\n[bold]Text that it makes[/], as it is made:\n")
    lm = load(folder)
    print_stream(lm, PROMPT, {"max_new_tokens": 120, "temperature": 0.7, "seed": 1})
    _what_next(out, folder)


def demo_spec(vocab_size: int) -> ModelSpec:
    """A Llama-like decoder that two cores train in a minute or two."""
    return llama(
        name="demo-llama", num_layers=4, d_model=192, num_heads=6, num_kv_heads=2, d_ff=512, vocab_size=vocab_size,
        context_length=LENGTH, tied=True,
    )  # fmt: skip


def seconds_per_step(spec: ModelSpec, dtype: str) -> float:
    """The median time of a training step here, on a model that is thrown away."""
    model = build(spec).train()
    optimizer = build_optimizer(model, AdamW())
    times = []
    for _ in range(6):
        started = time.perf_counter()
        with autocast(dtype, torch.device("cpu")):
            loss = next_token_loss(model, torch.randint(spec.vocab_size, (BATCH_SIZE, LENGTH + 1)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - started)
    return sorted(times[1:])[len(times[1:]) // 2]


def _free_folder(wanted: Path) -> Path:
    candidates = (wanted if n == 1 else wanted.with_name(f"{wanted.name}-{n}") for n in range(1, 10_000))
    return next(folder for folder in candidates if not folder.exists())


def _what_next(out: Console, folder: Path) -> None:
    out.print("\n[bold]Try next[/]")
    for command, meaning in (
        (f'archetype generate {folder} "The first argument"', "your own prompt"),
        (f"archetype set {folder} num_layers=6 --to deeper.yaml", "another architecture, for `train --spec`"),
        (f"archetype export {folder} --to {folder}-hf", "a folder that transformers loads"),
    ):
        out.print(f"  {command:<62} {meaning}", soft_wrap=True, markup=False)
