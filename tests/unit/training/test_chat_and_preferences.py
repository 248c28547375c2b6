"""Chat tuning and preference pairs: their losses are the formulas', and a resumed run goes on to the bit."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype.api import loading
from archetype.errors import ArchetypeError
from archetype.training.chunked_loss import IGNORED
from archetype.training.evaluate import evaluate
from archetype.training.examples import Conversations, Preferences
from archetype.training.objectives import DPO, Chat
from archetype.training.objectives.chat import ChatObjective
from archetype.training.objectives.dpo import DPOObjective
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.helpers.examples import every
from tests.helpers.recipes import decoder, megabyte
from tests.helpers.weights import distance, randomize
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Numbers to add: conversations of one or two turns, and pairs of which the right sum is preferred."""
    folder, drawn = tmp_path_factory.mktemp("examples"), random.Random(0)
    (folder / "template.jinja").write_text(TEMPLATE)
    talks, pairs = [], []
    for number in range(60):
        one, two = drawn.randint(0, 9), drawn.randint(0, 9)
        turns = [{"role": "user", "content": f"{one}+{two}"}, {"role": "assistant", "content": str(one + two)}]
        talks.append({"messages": turns * (1 + number % 2)})
        pairs.append({"prompt": f"{one}+{two}=", "chosen": str(one + two), "rejected": str(one + two + 1)})
        if number % 2:
            pairs[-1] = {"prompt": turns[:1], "chosen": turns[1:], "rejected": [turns[1] | {"content": "?"}]}
    for name, records in (("chat", talks), ("preferences", pairs)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    return {name: folder / f"{name}.jsonl" for name in ("chat", "preferences")} | {
        "template": folder / "template.jinja"
    }


def recipe_of(files: dict[str, Path], kind: str, **fields: Any) -> Recipe:
    data = {"chat": Conversations, "preferences": Preferences}[kind]
    return Recipe(
        spec="llama-tiny", batch_size=8, steps=8, evaluate_every=4, checkpoint_every=3, dtype="float32",
        data=data(examples=(str(files[kind]),), template=str(files["template"]), tokenizer="bytes"),
        optimizer=AdamW(learning_rate=3e-3),
    ).replace(**fields)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "objective"),
    every(2, (pytest.param(*one) for one in [("chat", Chat()), ("chat", Chat(packed=True)), ("preferences", DPO())])),
)
def test_it_resumes_to_the_bit(kind: str, objective: Any, files: dict[str, Path], tmp_path: Path) -> None:
    recipe = recipe_of(files, kind, objective=objective, micro_batch_size=3)
    whole = start(tmp_path / "whole", recipe, CPU)
    expected = [measured(step) for step in steps(whole)]
    assert len({loss for _, loss, _ in expected}) == 8
    first = steps(start(tmp_path / "parts", recipe, CPU), 5)
    second = resume(tmp_path / "parts", CPU)
    assert [measured(step) for step in first + steps(second)] == expected
    assert_equal_states(second, whole)
    lm = loading.load(tmp_path / "parts")
    assert lm.chat([{"role": "user", "content": "1+1"}], max_new_tokens=2) is not None


def test_a_chat_learns_answers_alone(files: dict[str, Path], tmp_path: Path) -> None:
    state = start(tmp_path / "run", recipe_of(files, "chat"), CPU)
    assert isinstance(state.objective, ChatObjective) and state.tokenizer is not None
    inputs, targets = state.objective.inputs_and_targets(state.objective.batch(0))
    for tokens, row, count in zip(inputs["tokens"], targets, inputs["num_tokens"], strict=True):
        text = state.tokenizer.decode(tokens[:count].tolist() + row[count - 1 : count].clamp(min=0).tolist())
        answers = [part[2:] + ";" for part in text.split(";") if part.startswith("a:")]
        assert state.tokenizer.decode(row[row >= 0].tolist()) == "".join(answers)
    short = start(tmp_path / "short", recipe_of(files, "chat", sequence_length=10), CPU).objective
    assert "truncated to 10 tokens" in short.description


def test_an_answer_without_weight_is_read_and_not_learned(files: dict[str, Path], tmp_path: Path) -> None:
    """Every second answer has `weight: 0`, as OpenAI's files of conversations say it; the texts stay the same."""
    records = [json.loads(line) for line in files["chat"].read_text().splitlines()]
    answers = [one for record in records for one in record["messages"] if one["role"] == "assistant"]
    for number, answer in enumerate(answers):
        answer["weight"] = number % 2
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, records)))
    objectives = [
        start(tmp_path / name, recipe_of(paths, "chat"), CPU).objective
        for name, paths in (("all", files), ("some", files | {"chat": tmp_path / "chat.jsonl"}))
    ]
    counts = []
    for objective in objectives:
        assert isinstance(objective, ChatObjective)
        rows = [row for rows in (objective.training, objective.validation) for row in rows]
        counts.append(sum(int(marks.sum()) for ((_, marks),) in rows))
    assert counts[1] == sum(len(answer["content"]) + 1 for answer in answers[1::2]) < counts[0]
    assert counts[0] == sum(len(answer["content"]) + 1 for answer in answers)


def test_a_step_in_parts_is_the_mean_over_all_answers(files: dict[str, Path], tmp_path: Path) -> None:
    """Parts with more answers count more, in the loss and in the gradient; the mean of their means is another."""
    first_steps = []
    for rows in (48, 7, 1):
        state = start(tmp_path / str(rows), recipe_of(files, "chat", batch_size=48, micro_batch_size=rows), CPU)
        if rows == 1:
            batch, model = state.objective.batch(0), state.model
            losses = [state.objective.compute_loss(model, tuple(t[i : i + 1] for t in batch)) for i in range(48)]
        first_steps.append(steps(state, 1)[0])
    assert len({one.num_targets for one in losses}) > 1
    for step in first_steps[1:]:
        assert step.num_targets == first_steps[0].num_targets == sum(one.num_targets for one in losses)
        assert step.loss == pytest.approx(first_steps[0].loss, rel=1e-6)
        assert step.gradient_norm == pytest.approx(first_steps[0].gradient_norm, rel=1e-5)
    mean_of_means = sum(one.loss.item() for one in losses) / 48
    assert mean_of_means != pytest.approx(first_steps[0].loss, rel=1e-5)


def test_no_conversation_answers_with_the_first_token_of_the_next(files: dict[str, Path], tmp_path: Path) -> None:
    """Also where a template puts nothing before an answer, and a conversation begins with one."""
    objective = start(tmp_path / "run", recipe_of(files, "chat", objective=Chat(packed=True)), CPU).objective
    tokens, ids = torch.arange(8)[None], torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2]])
    _, targets = objective.inputs_and_targets((tokens, torch.tensor([8]), torch.ones(1, 8, dtype=torch.bool), ids))
    assert targets.tolist() == [[1, 2, IGNORED, 4, 5, 6, IGNORED]]


def test_packed_conversations_are_computed_as_each_alone(files: dict[str, Path], tmp_path: Path) -> None:
    """A control: without the conversations' numbers the second of a row sees the first."""
    alone = start(tmp_path / "run", recipe_of(files, "chat"), CPU).objective
    recipe = recipe_of(files, "chat", objective=Chat(packed=True))
    state = start(tmp_path / "packed", recipe, CPU)
    objective, model = state.objective, state.model.eval()
    assert isinstance(objective, ChatObjective) and isinstance(alone, ChatObjective)
    for rows, conversations in (objective.training, alone.training), (objective.validation, alone.validation):
        assert len(rows) < len(conversations) and all(sum(len(ids) for ids, _ in row) <= 129 for row in rows)
        assert [ids.tolist() for row in rows for ids, _ in row] == [row[0][0].tolist() for row in conversations]
    randomize(model)
    is_mixed = False
    for step in range(2):
        inputs, targets = objective.inputs_and_targets(objective.batch(step))
        together = model(**inputs).logits
        plain = model(**{name: value for name, value in inputs.items() if name != "document_ids"}).logits
        for number, place in enumerate(objective.order.batch(step)):
            first = 0
            for ids, marks in objective.training[place]:
                expected = model(torch.from_numpy(ids[:-1]).long()[None]).logits[0]
                part = slice(first, first + len(ids) - 1)
                assert distance(together[number, part], expected) < 1e-5
                is_mixed |= distance(plain[number, part], expected) > 1e-3
                assert torch.equal(targets[number, part] >= 0, torch.from_numpy(marks[1:]))
                assert first == 0 or targets[number, first - 1] < 0  # the next conversation's first token
                first += len(ids)
            assert (targets[number, first - 1 :] < 0).all()
    assert is_mixed
    for spec in (decoder(mixer={"kind": "gru"}), megabyte()):
        with pytest.raises(ArchetypeError, match=r"remove objective.packed"):
            start(tmp_path / "gru", recipe.replace(spec=spec), CPU)


def test_the_loss_of_preferences_is_that_of_the_formula(files: dict[str, Path], tmp_path: Path) -> None:
    """Rafailov 2023, equation 7, in numpy, one text at a time."""
    state = start(tmp_path / "run", recipe_of(files, "preferences", objective=DPO(beta=0.3)), CPU)
    objective, model = state.objective, state.model.eval()
    assert isinstance(objective, DPOObjective)

    def log_probability(row: Any) -> float:
        ids, marks = row
        with torch.no_grad():
            logits = model(torch.from_numpy(ids).long()[None]).logits[0].double().numpy()
        log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return float(sum(log_probabilities[place - 1, ids[place]] for place in range(1, len(ids)) if marks[place]))

    reference = [[log_probability(row) for row in pair] for pair in objective.validation]
    assert np.allclose(objective.reference["validation"].numpy(), reference, atol=1e-4)
    randomize(model, seed=4)
    margins = [
        0.3 * ((log_probability(better) - before) - (log_probability(worse) - other))
        for (better, worse), (before, other) in zip(objective.validation, reference, strict=True)
    ]
    evaluation = evaluate(model, objective, "float32")
    assert evaluation is not None and evaluation.reward_margin is not None
    assert evaluation.loss == pytest.approx(sum(math.log1p(math.exp(-m)) for m in margins) / len(margins), rel=1e-4)
    assert evaluation.reward_margin == pytest.approx(sum(margins) / len(margins), rel=1e-3, abs=1e-3)
    assert evaluation.accuracy == sum(margin > 0 for margin in margins) / len(margins)


def test_what_is_missing_is_said(files: dict[str, Path], tmp_path: Path) -> None:
    recipe = recipe_of(files, "preferences")
    with pytest.raises(ArchetypeError, match="or all be messages"):
        start(tmp_path / "run", recipe.replace(data=recipe.data.replace(template="")), CPU)
    with pytest.raises(ArchetypeError, match="no assistant answer fits into 3 tokens; increase sequence_length"):
        start(tmp_path / "run", recipe_of(files, "chat", sequence_length=3), CPU)
