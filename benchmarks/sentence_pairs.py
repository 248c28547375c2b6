"""A published sentence encoder fine-tuned on pairs, step by step beside sentence-transformers.

    python -m benchmarks.sentence_pairs all-MiniLM-L6-v2 train.de train.en test.de test.en

Both begin with the same weights, without dropout, and take the same batches in the same order, at the same learning
rates, in float32: MultipleNegativesRankingLoss there, the objective `contrastive` here. Printed are the losses of all
steps, and how well each finds the second text of the test's pairs by the first, before and after.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import archetype
from archetype.api.loading import load
from archetype.api.pretrained import open_pretrained
from archetype.data.pairs import read_lines
from archetype.evaluation.retrieval import retrieval_score
from archetype.io.text import read_text
from archetype.training import metrics
from archetype.training.examples import TextPairs
from archetype.training.loop import run
from archetype.training.objectives import Contrastive
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine
from archetype.training.setup import start
from benchmarks.machine import heading

CPU = torch.device("cpu")
Lines = tuple[list[str], list[str]]


class Tuned(NamedTuple):
    """A model that was trained further.

    Attributes:
        losses: of all steps.
        before: vectors of the test's texts, of the first and of the second of each pair, before the first step.
        after: likewise after the last.
        seconds: of all steps.
    """

    losses: list[float]
    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor]
    seconds: float


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("files", type=Path, nargs=4, help="lines of the first and second texts, to learn and to test")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-5)
    chosen = parser.parse_args()
    print(heading(f"python -m benchmarks.sentence_pairs {chosen.model.name} --steps {chosen.steps}"))
    texts = [read_text(file) for file in chosen.files]
    training, test = (read_lines(*texts[place : place + 2], str(chosen.files[place])) for place in (0, 2))
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = compare(chosen.model, training, test, Path(folder), chosen.steps, chosen.rows, chosen.rate)
    apart = [abs(a - b) / b for a, b in zip(ours.losses, theirs.losses, strict=True)]
    print(f"losses of {chosen.steps} steps: at most {max(apart):.1e} apart, relative; {ours.losses[0]:.6f} and")
    print(f"{theirs.losses[0]:.6f} at first, {ours.losses[-1]:.6f} and {theirs.losses[-1]:.6f} at last")
    for name, tuned in (("Archetype", ours), ("sentence-transformers", theirs)):
        print(f"{name}: {tuned.seconds:.1f} s")
        for when, vectors in (("before", tuned.before), ("after", tuned.after)):
            print(f"{when}\n{retrieval_score(*vectors, [{place: 1.0} for place in range(len(vectors[0]))])}")


def compare(
    model: Path, training: Lines, test: Lines, folder: Path, steps: int, rows: int, rate: float
) -> tuple[Tuned, Tuned]:
    """Train a model here and there.

    Args:
        model: a folder of sentence-transformers.
        training: the first and the second texts of the pairs that are learned from.
        test: of those that are not.
        folder: for all files.
        steps: of training.
        rows: pairs of a step.
        rate: the highest learning rate.
    """
    begin = folder / "begin"
    shutil.copytree(model, begin)
    config = json.loads((begin / "config.json").read_text())
    config |= {key: 0.0 for key in config if key.endswith(("_dropout", "_dropout_prob"))}
    (begin / "config.json").write_text(json.dumps(config))
    pairs = [{"anchor": a, "positive": b} for a, b in zip(*training, strict=True)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    recipe = Recipe(
        data=TextPairs(examples=(str(folder / "pairs.jsonl"),), validation_fraction=0.01), objective=Contrastive(),
        batch_size=rows, steps=steps,
        optimizer=AdamW(learning_rate=rate, weight_decay=0.0), schedule=Cosine(warmup_steps=steps // 10),
        dtype="float32", evaluate_every=steps, evaluate_batches=1, checkpoint_every=steps,
    )  # fmt: skip
    before = _vectors(archetype.load(begin), test)
    state = start(folder / "run", recipe, CPU, pretrained=open_pretrained(begin))
    objective: Any = state.objective
    recipe, records = state.recipe, recipe.data.split(recipe.data.read_texts(folder))[0]  # type: ignore[attr-defined]
    batches = [[records[place] for place in objective.order.batch(step)] for step in range(steps)]
    run(state, lambda event: None)
    lines = [line for line in metrics.read(state.run.metrics_file) if "loss" in line]
    seconds = sum(line["num_targets"] / line["per_second"] for line in lines)
    ours = Tuned([line["loss"] for line in lines], before, _vectors(load(folder / "run"), test), seconds)
    return ours, _theirs(begin, batches, test, recipe)


def _vectors(lm: archetype.LanguageModel, texts: Lines) -> tuple[Tensor, Tensor]:
    return lm.embed(texts[0]), lm.embed(texts[1])


def _theirs(begin: Path, batches: list[list[dict[str, str]]], test: Lines, recipe: Recipe) -> Tuned:
    """The same by sentence-transformers."""
    from sentence_transformers import SentenceTransformer  # type: ignore
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # type: ignore

    model = SentenceTransformer(str(begin), device="cpu")

    def vectors() -> tuple[Tensor, Tensor]:
        first, second = (torch.tensor(model.encode(texts, show_progress_bar=False)) for texts in test)
        return first, second

    before, losses, loss_of = vectors(), [], MultipleNegativesRankingLoss(model)
    settings: Any = recipe.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=settings.betas, eps=settings.eps, weight_decay=0.0
    )
    started = time.perf_counter()
    model.train()
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = recipe.schedule.learning_rate(settings.learning_rate, step, recipe.steps)
        loss = loss_of([model.preprocess([row[name] for row in batch]) for name in ("anchor", "positive")], None)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    seconds = time.perf_counter() - started
    model.eval()
    return Tuned(losses, before, vectors(), seconds)


if __name__ == "__main__":
    main()
