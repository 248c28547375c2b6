"""Tasks that are drawn: their answers are right, and a model learns them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from archetype.errors import SpecError
from archetype.models.build import build
from archetype.spec import parse
from archetype.studies.metric_values import position_losses, right_answers
from archetype.studies.settings import Metric
from archetype.training import setup
from archetype.training.evaluate import evaluate
from archetype.training.loop import take_step
from archetype.training.objectives.synthetic import SyntheticObjective
from archetype.training.recipe import Recipe
from archetype.training.synthetic import FILLER, FIRST, QUERY, DistantRecall, Facts, Recall, Reverse
from tests.helpers.specs import block, decoder
from tests.unit.studies.small import BASE, RECIPE


def test_recall_asks_for_the_value_of_a_key() -> None:
    data = Recall(symbols=16, num_pairs=4, length=20)
    rows = data.rows(np.random.default_rng(0), 50)
    assert rows.tokens.shape == (50, 21) and rows.tokens.max() < data.num_ids
    for tokens, is_target in zip(rows.tokens, rows.is_target, strict=True):
        pairs = dict(zip(tokens[:8:2], tokens[1:8:2], strict=True))
        assert len(pairs) == 4 and max(pairs) < FIRST + 8 <= min(pairs.values())
        asked = np.flatnonzero(is_target)
        assert len(asked) == 6 and all(pairs[tokens[at]] == tokens[at + 1] for at in asked)


def test_distant_recall_asks_for_what_stood_so_far_back() -> None:
    data = DistantRecall(symbols=16, distances=(3, 9), length=12)
    rows = data.rows(np.random.default_rng(0), 200)
    seen = set()
    for tokens in rows.tokens:
        (place,) = np.flatnonzero((tokens[:11] >= FIRST) & (tokens[:11] < FIRST + 8))
        assert tokens[11] == QUERY and tokens[12] == tokens[place]
        seen.add(11 - int(place))
    assert seen == {3, 9}
    assert rows.is_target.sum() == 200 and rows.is_target[:, -1].all()


def test_facts_have_one_value_each_and_are_all_measured() -> None:
    data = Facts(num_facts=500, symbols=16)
    facts = data.all_facts()
    assert len({tuple(fact[:3]) for fact in facts}) == 500 and data.bits == 500 * 2 * 4
    rows = data.held_out()
    assert np.array_equal(rows.tokens, facts) and rows.is_target.sum() == 1000
    drawn = data.rows(np.random.default_rng(1), 100)
    assert {tuple(row) for row in drawn.tokens} <= {tuple(row) for row in facts}


def test_reversed_rows_end_where_they_are_padded() -> None:
    for copies in (False, True):
        rows = Reverse(symbols=8, lengths=(2, 6), copies=copies).rows(np.random.default_rng(0), 50)
        assert rows.source is not None and rows.source_lengths is not None
        for source, length, tokens in zip(rows.source, rows.source_lengths, rows.tokens, strict=True):
            answer = source[:length] if copies else source[:length][::-1]
            assert tokens[0] == QUERY and np.array_equal(tokens[1 : 1 + length], answer)
            assert (tokens[1 + length :] == FILLER).all() and 2 <= length <= 6


@pytest.mark.parametrize("kind", ["recall", "reverse"])
def test_a_model_learns_from_drawn_examples_and_resumes(kind: str, tmp_path: Path) -> None:
    data = {"kind": kind, "symbols": 12, "held_out_rows": 8} | ({"num_pairs": 2} if kind == "recall" else {})
    spec = BASE | {"context_length": 64}
    if kind == "reverse":
        plain = {"wiring": "plain", "mixer": "lstm"}
        sizes = {"kind": "encoder_decoder", "vocab_size": 20, "context_length": 24, "d_model": 16}
        sides = {side: {"layers": [plain]} for side in ("encoder", "decoder")}
        spec = sizes | sides | {"state_bridge": {"kind": "state"}}
    recipe = Recipe.parse(RECIPE | {"spec": spec, "data": data, "steps": 30, "batch_size": 8})
    state = setup.start(tmp_path / "run", recipe, torch.device("cpu"))
    losses = [take_step(state).loss for _ in range(30)]
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.2
    again = setup.resume(tmp_path / "run", torch.device("cpu"))
    for one, other in zip(state.objective.batch(7), again.objective.batch(7), strict=True):
        assert torch.equal(one, other)


def test_a_model_without_room_is_refused(tmp_path: Path) -> None:
    recipe = Recipe.parse(
        RECIPE | {"spec": BASE, "data": {"kind": "recall", "symbols": 40, "length": 8, "num_pairs": 2}}
    )
    with pytest.raises(SpecError, match="vocab_size: 20 is too small for data of kind recall; use 42"):
        setup.start(tmp_path / "run", recipe, torch.device("cpu"))


def test_losses_by_position_are_those_of_the_same_tokens() -> None:
    spec = decoder(block(), vocab_size=11, context_length=16)
    model = build(parse(spec) if isinstance(spec, dict) else spec).eval()
    ids = np.random.default_rng(0).integers(11, size=60, dtype=np.int32)
    near = position_losses(model, ids, Metric(positions=(2, 6), skip=12))
    far = position_losses(model, ids, Metric(positions=(12, 16), skip=12))
    assert len(near) == len(far) == 44 and not torch.equal(near, far)
    for first, losses in ((2, near), (12, far)):
        for index in (0, 5, 43):
            start = 12 + index // 4 * 4 - first
            window = torch.from_numpy(ids[start : start + 17]).long()
            place = first + index % 4
            logits = model(window[None, : place + 1]).logits[0, -1]
            expected = torch.nn.functional.cross_entropy(logits, window[place + 1])
            assert losses[index].item() == pytest.approx(expected.item(), rel=1e-4)


def test_right_answers_of_examples_make_the_accuracy() -> None:
    model = build(parse(BASE)).eval()
    data = Recall(symbols=12, num_pairs=2, length=8, held_out_rows=100)
    objective = SyntheticObjective(data, 64, 0)
    correct, answers = right_answers(model, objective)
    evaluation = evaluate(model, objective, "float32")
    assert evaluation is not None and len(correct) == 100 and sum(correct) > 0
    assert sum(correct) / sum(answers) == evaluation.accuracy
