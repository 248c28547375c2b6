"""Trained models taken further: a class head beside transformers, chat tuning, preference pairs.

    python -m benchmarks.tuning classes all-MiniLM-L6-v2
    python -m benchmarks.tuning chat stories260K
    python -m benchmarks.tuning preferences stories260K

`classes` writes scikit-learn's measurements of breast tumours as texts, malignant or benign. transformers begins with
the same weights, head included, and takes the same batches in the same order, with the same optimizer and schedule.
`chat` and `preferences` ask for a story about somebody and something, in a template of their own.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import archetype
from archetype.api.loading import load
from archetype.api.pretrained import open_pretrained
from archetype.training.evaluate import evaluate
from archetype.training.examples import Conversations, LabelledText, Preferences
from archetype.training.loop import run
from archetype.training.objectives.text_class import LabelledTextObjective
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.schedules import Cosine
from archetype.training.setup import start
from archetype.training.state import TrainState
from benchmarks.machine import heading

CPU = torch.device("cpu")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% else %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
NAMES = ["Tom", "Lily", "Ben", "Mia", "Sam", "Sue", "Tim", "Anna", "Max", "Lucy"]
THINGS = ["ball", "cat", "dog", "tree", "book", "hat", "car", "boat", "cake", "box", "bird", "flower"]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("classes", "chat", "preferences"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    print(heading(f"python -m benchmarks.tuning {options.what} {options.model.name}"))
    with tempfile.TemporaryDirectory() as folder:
        {"classes": classes, "chat": chat, "preferences": preferences}[options.what](
            options.model, Path(folder), options.steps
        )


def classes(model: Path, folder: Path, steps: int | None) -> None:
    """The held-out accuracy after the same steps here and in transformers."""
    from sklearn.datasets import load_breast_cancer

    tumours = load_breast_cancer()
    names = [str(name).removeprefix("mean ") for name in tumours.feature_names[:10]]
    with (folder / "tumours.jsonl").open("w") as file:
        for values, kind in zip(tumours.data, tumours.target, strict=True):
            text = ", ".join(f"{name} {value:.3g}" for name, value in zip(names, values[:10], strict=True))
            file.write(json.dumps({"text": text, "label": str(tumours.target_names[kind])}) + "\n")
    steps = steps or 90
    recipe = Recipe(
        data=LabelledText(examples=(str(folder / "tumours.jsonl"),), validation_fraction=0.2), batch_size=16,
        steps=steps,
        optimizer=AdamW(learning_rate=1e-4, weight_decay=0.01), schedule=Cosine(warmup_steps=10), dtype="float32",
        evaluate_every=steps, checkpoint_every=steps,
    )  # fmt: skip
    state = start(folder / "run", recipe, CPU, pretrained=open_pretrained(model))
    archetype.export(load(folder / "run"), folder / "start")
    print(f"{state.objective.description}, {len(state.objective.validation)} held out; {steps} steps of 16")  # type: ignore[attr-defined]
    seconds = _timed(state)
    _print_evaluation("Archetype", state, seconds)
    _transformers(state, folder / "start")


def _transformers(state: TrainState, folder: Path) -> None:
    """The same fine-tuning by transformers' model and torch's AdamW."""
    from transformers import AutoModelForSequenceClassification

    objective, recipe = state.objective, state.recipe
    assert isinstance(objective, LabelledTextObjective)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).train()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": decay}, {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=True)
    started = time.perf_counter()
    torch.manual_seed(0)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.schedule.learning_rate(1e-4, step, recipe.steps)
        model(**_inputs(objective.batch(step))).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    seconds, loss, right, count = time.perf_counter() - started, 0.0, 0, 0
    model.eval()
    with torch.inference_mode():
        for index in range(objective.num_validation_batches):
            inputs = _inputs(objective.validation_batch(index))
            output = model(**inputs)
            loss += output.loss.item() * len(inputs["labels"])
            right += int((output.logits.argmax(-1) == inputs["labels"]).sum())
            count += len(inputs["labels"])
    print(f"transformers: held-out loss {loss / count:.4f}, {right / count:.1%} right, {seconds:.0f} s")


def _inputs(batch: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    tokens, num_tokens, labels = batch
    mask = (torch.arange(tokens.shape[1]) < num_tokens[:, None]).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def chat(model: Path, folder: Path, steps: int | None) -> TrainState:
    """The held-out loss of answers before and after, and how many answers name what was asked for."""
    (folder / "template.jinja").write_text(TEMPLATE)
    asked = [*itertools.product(NAMES, THINGS)]
    talks = [{"messages": [_request(name, thing), _answer(_story(name, thing))]} for name, thing in asked]
    (folder / "chat.jsonl").write_text("\n".join(map(json.dumps, talks)))
    data = Conversations(
        examples=(str(folder / "chat.jsonl"),), template=str(folder / "template.jinja"), validation_fraction=0.2
    )
    steps = steps or 400
    recipe = Recipe(
        data=data, batch_size=16, steps=steps, optimizer=AdamW(learning_rate=2e-3), schedule=Cosine(warmup_steps=20),
        evaluate_every=steps, checkpoint_every=steps, dtype="float32",
    )  # fmt: skip
    state = start(folder / "chat", recipe, CPU, pretrained=open_pretrained(model))
    print(f"{state.objective.description}; {steps} steps of 16")
    _print_evaluation("before", state)
    _print_evaluation("after", state, _timed(state))
    lm, held_out = load(folder / "chat"), data.split(data.read_texts(folder))[1]
    answers = [lm.chat(record["messages"][:1], max_new_tokens=100, temperature=0.0) for record in held_out]
    right = 0
    for record, answer in zip(held_out, answers, strict=True):
        name, thing = record["messages"][0]["content"].removesuffix(".").split(" about ")[1].split(" and a ")
        right += name in answer and thing in answer
    print(
        f"{right} of {len(answers)} held-out requests get a story with the name and the thing; the first: {answers[0]}"
    )
    return state


def preferences(model: Path, folder: Path, steps: int | None) -> None:
    """Reward margin and accuracy on held-out pairs, of which the story with a happy end is preferred."""
    chat(model, folder, None)
    pairs = [
        {
            "prompt": [_request(name, thing)],
            "chosen": [_answer(_story(name, thing, happy=True))],
            "rejected": [_answer(_story(name, thing, happy=False))],
        }
        for name, thing in itertools.product(NAMES, THINGS)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    steps = steps or 60
    recipe = Recipe(
        data=Preferences(examples=(str(folder / "pairs.jsonl"),), validation_fraction=0.2), batch_size=16, steps=steps,
        optimizer=AdamW(learning_rate=2e-4), schedule=Cosine(warmup_steps=5), evaluate_every=steps,
        checkpoint_every=steps, dtype="float32",
    )  # fmt: skip
    state = start(folder / "preferences", recipe, CPU, pretrained=open_pretrained(folder / "chat"))
    print(f"{state.objective.description}; {steps} steps of 16")
    _print_evaluation("before", state)
    _print_evaluation("after", state, _timed(state))


def _request(name: str, thing: str) -> dict[str, str]:
    return {"role": "user", "content": f"Tell me a story about {name} and a {thing}."}


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _story(name: str, thing: str, happy: bool | None = None) -> str:
    drawn = random.Random(f"{name} {thing}")
    happy = drawn.random() < 0.5 if happy is None else happy
    place = drawn.choice(["in the park", "at home", "by the sea", "in the garden"])
    end = f"{name} was very happy." if happy else f"{name} was very sad."
    return f"Once upon a time, there was a child named {name}. One day, {name} saw a big {thing} {place}. {end}"


def _timed(state: TrainState) -> float:
    started = time.perf_counter()
    run(state, lambda event: None)
    return time.perf_counter() - started


def _print_evaluation(name: str, state: TrainState, seconds: float | None = None) -> None:
    evaluation = evaluate(state.model, state.objective, state.recipe.dtype)
    assert evaluation is not None
    margin = "" if evaluation.reward_margin is None else f", reward margin {evaluation.reward_margin:.3f}"
    took = "" if seconds is None else f", {seconds:.0f} s"
    print(f"{name}: held-out loss {evaluation.loss:.4f}, {evaluation.accuracy:.1%} right{margin}{took}", flush=True)


if __name__ == "__main__":
    main()
