"""Beam search: greedy with one beam, exhaustive with enough of them, and the same for a source in any company."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from archetype.errors import SpecError
from archetype.families.original_transformer import transformer
from archetype.families.seq2seq import seq2seq
from archetype.families.t5 import t5
from archetype.generate import beam, step
from archetype.generate.beam import Search, beam_search, finished_targets
from archetype.generate.hypotheses import Candidates, Hypotheses
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.context import ForwardContext
from archetype.nn.state import State
from archetype.settings.generation import Beam
from tests.helpers.cases import case
from tests.helpers.kernels import kernels
from tests.helpers.passes import taught
from tests.helpers.weights import distance, randomize

END = 0
SIZES = dict(num_layers=1, d_model=8, context_length=12)
Tokens = list[int]
Finished = list[tuple[float, Tokens]]


# of randomly drawn models, some that give different targets of different lengths, found by trying
SEEDS = {"transformer": 18, "t5": 4, "lstm": 18, "lstm with attention": 21}


@cache
def built(name: str, vocab_size: int = 5, seed: int | None = None) -> EncoderDecoder:
    sizes = SIZES | {"vocab_size": vocab_size}
    spec = {
        "transformer": lambda: transformer(num_heads=2, d_ff=12, **sizes),
        "t5": lambda: t5(num_heads=2, head_dim=4, d_ff=12, tied=False, **sizes),
        "lstm": lambda: seq2seq(**sizes),
        "lstm with attention": lambda: seq2seq(attention=True, **sizes),
    }[name]()
    model = randomize(build(spec), SEEDS[name] if seed is None else seed)
    assert isinstance(model, EncoderDecoder)
    with torch.no_grad():  # so that logits follow the text, and no two are alike
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


# a cache of keys and values, and a recurrence with attention, in every run; the others have the same states
OF_EACH_STATE = ("transformer", "lstm with attention")


@pytest.fixture(
    params=[name if name in OF_EACH_STATE else pytest.param(name, marks=pytest.mark.slow) for name in SEEDS]
)
def model(request: pytest.FixtureRequest) -> EncoderDecoder:
    return built(request.param)


SOURCES = [[1, 2, 3, END], [4, END], [3, 3, 1, 4, 2, 1, 4, END], [2, 1, END], [1, END]]


def logs(model: EncoderDecoder, source: Tokens, target: Tokens) -> list[list[float]]:
    """The log-probabilities of every next token of a target, from one pass over the whole."""
    return _logs(model, tuple(source), tuple(target))


@cache  # searches with other settings ask the same
@torch.no_grad()
def _logs(model: EncoderDecoder, source: tuple[int, ...], target: tuple[int, ...]) -> list[list[float]]:
    beginning = torch.tensor([[END, *target]])
    result: list[list[float]] = taught(model, torch.tensor([source]), beginning).log_softmax(-1)[0].tolist()
    return result


def greedy(model: EncoderDecoder, source: Tokens, limit: int) -> Tokens:
    target: Tokens = []
    while len(target) < limit:
        last = logs(model, source, target)[-1]
        token = last.index(max(last))
        if token == END:
            break
        target.append(token)
    return target


def every(vocab_size: int, longest: int) -> Iterator[Tokens]:
    """All targets of at most `longest` tokens without their end."""
    level: list[Tokens] = [[]]
    for _ in range(longest + 1):
        yield from level
        level = [[*target, token] for target in level for token in range(1, vocab_size)]


def exhaustive(model: EncoderDecoder, source: Tokens, limit: int, settings: Beam) -> Tokens:
    """The best of all targets that end within the limit."""

    def score(target: Tokens) -> float:
        log_probabilities = logs(model, source, target)
        total = sum(log_probabilities[place][token] for place, token in enumerate([*target, END]))
        return total / ((5 + len(target) + 1) / 6) ** settings.length_penalty

    return max(every(model.spec.vocab_size, limit - 1), key=score)


def search(model: EncoderDecoder, sources: list[Tokens], **settings: Any) -> list[Tokens]:
    return beam_search(model, sources, END, END, Beam.parse(settings))


@pytest.mark.parametrize("longer", [1, 5, 50])
def test_one_beam_is_greedy(model: EncoderDecoder, longer: int) -> None:
    targets = search(model, SOURCES, num_beams=1, max_extra_tokens=longer)
    limits = [min(11, len(source) + longer) for source in SOURCES]
    assert targets == [greedy(model, *pair) for pair in zip(SOURCES, limits, strict=True)]
    assert any(targets)


@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_never_written_is_not_found(model: EncoderDecoder, beams: int) -> None:
    common = {token for target in search(model, SOURCES, num_beams=beams, max_extra_tokens=5) for token in target}
    never = (max(common), 10**9)
    targets = search(model, SOURCES, num_beams=beams, max_extra_tokens=5, suppress_tokens=never)
    assert not {token for target in targets for token in target} & {*never}
    assert any(targets)


def test_what_leaves_no_token_or_names_none(model: EncoderDecoder) -> None:
    limits = {"num_beams": 2, "max_new_tokens": 4}
    targets = search(model, SOURCES, **limits, sequence_bias=[([token], -1e38) for token in range(1, 5)])
    assert targets == [[]] * len(SOURCES)
    cut = search(model, SOURCES, **limits, bad_words_ids=[(token,) for token in range(1, 5)], min_new_tokens=9)
    assert [len(target) for target in cut] == [4] * len(SOURCES)  # nothing is allowed, and nothing fails
    with pytest.raises(SpecError, match="forced_bos_token_id: contains a token id outside the vocabulary of 5"):
        search(model, SOURCES, forced_bos_token_id=5)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 3.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["transformer", "lstm with attention"])
def test_with_enough_beams_nothing_better_exists(name: str, seed: int, length_penalty: float) -> None:
    model = built(name, vocab_size=4, seed=seed)
    settings = {"num_beams": 64, "length_penalty": length_penalty, "max_extra_tokens": 2}
    sources = [[1, END], [3, END], [2, END]]
    targets = search(model, sources, **settings)
    assert targets == [exhaustive(model, source, 4, Beam.parse(settings)) for source in sources]


def test_the_penalty_of_a_length_changes_what_is_found() -> None:
    """A control of the test above."""

    def found(penalty: float) -> list[Tokens]:
        settings = {"num_beams": 64, "length_penalty": penalty, "max_extra_tokens": 2}
        models = [built(name, 4, seed) for seed in range(3) for name in ("transformer", "lstm with attention")]
        return [target for model in models for target in search(model, [[1, END], [3, END]], **settings)]

    assert sum(map(len, found(3.0))) > sum(map(len, found(0.0))) > 0


def test_a_length_is_judged_as_wu_2016_does() -> None:
    """Equation 14: lp(Y) = (5 + |Y|)^alpha / (5 + 1)^alpha."""
    for penalty, length in ((0.6, 10), (1.0, 7), (0.0, 99), (0.6, 1)):
        expected = -3.5 / ((5 + length) ** penalty / (5 + 1) ** penalty)
        assert Beam(length_penalty=penalty).score(-3.5, length) == pytest.approx(expected)


@pytest.mark.parametrize("beams", [1, 3, 5])
def test_a_batch_is_as_each_source_alone(model: EncoderDecoder, beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [search(model, [source], num_beams=beams)[0] for source in SOURCES]
    assert search(model, SOURCES, num_beams=beams) == alone
    assert search(model, SOURCES[::-1], num_beams=beams) == alone[::-1]
    monkeypatch.setattr(beam, "BATCH_SIZE", 2)
    assert search(model, SOURCES, num_beams=beams) == alone
    assert len({tuple(target) for target in alone}) > 1


def without_end(model: EncoderDecoder) -> EncoderDecoder:
    """The same model, in which no target ever ends."""
    forward = model.forward

    def endless(*arguments: object, **options: object) -> object:
        output = forward(*arguments, **options)  # type: ignore[arg-type]
        output.logits[..., END] = -1e9
        return output

    model.forward = endless  # type: ignore[assignment, method-assign]
    return model


@pytest.mark.parametrize("beams", [1, 4])
def test_a_target_without_end_is_cut_off(beams: int) -> None:
    model = without_end(randomize(build(built("lstm").spec)))  # type: ignore[arg-type]
    sources = [[1, END], [1, 2, 3, 4, END]]
    assert [len(target) for target in search(model, sources, num_beams=beams, max_extra_tokens=3)] == [5, 8]
    assert [len(target) for target in search(model, sources, num_beams=beams, max_extra_tokens=50)] == [
        11,
        11,
    ]  # the context
    assert all(END not in target for target in search(model, sources, num_beams=beams))


@pytest.mark.parametrize("vocab_size", [2, 3])
def test_more_beams_than_tokens_are_no_trouble(vocab_size: int) -> None:
    model = built("transformer", vocab_size)
    settings = {"num_beams": 9, "max_extra_tokens": 2}
    sources = [[1, END], [1, 1, END], [END]]
    limits = [4, 5, 3]
    targets = search(model, sources, **settings)
    best = [exhaustive(model, s, limit, Beam.parse(settings)) for s, limit in zip(sources, limits, strict=True)]
    if vocab_size == 2:
        assert targets == best
    assert all(1 <= token < vocab_size for target in targets for token in target)


def plainly(model: EncoderDecoder, source: Tokens, limit: int, settings: Beam) -> Tokens:
    """The search in plain terms: one source, no states, every score from a pass over the whole target."""
    going: list[tuple[float, Tokens]] = [(0.0, [])]
    finished: list[tuple[float, Tokens]] = []
    for length in range(1, limit + 1):
        candidates = [
            (score + value, [*target, token])
            for score, target in going
            for token, value in enumerate(logs(model, source, target)[-1])
        ]
        best = sorted(candidates, reverse=True)[: 2 * settings.num_beams]
        finished += [
            (settings.score(score, length), target[:-1])
            for score, target in best[: settings.num_beams]
            if target[-1] == END
        ]
        going = [(score, target) for score, target in best if target[-1] != END][: settings.num_beams]
        good = sorted(finished, reverse=True)[: settings.num_beams]
        if len(good) == settings.num_beams and settings.score(going[0][0], length) <= good[-1][0]:
            break
    return max(finished or going)[1]


@torch.no_grad()
@pytest.mark.parametrize("beams", [2, 3, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_the_search_is_as_one_without_states(model: EncoderDecoder, beams: int, length_penalty: float) -> None:
    settings = {"num_beams": beams, "length_penalty": length_penalty, "max_extra_tokens": 4}
    limits = [min(11, len(source) + 4) for source in SOURCES]
    expected = [plainly(model, *pair, Beam.parse(settings)) for pair in zip(SOURCES, limits, strict=True)]
    assert search(model, SOURCES, **settings) == expected


def test_no_sources_give_no_targets() -> None:
    assert search(built("lstm"), []) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 0}, "num_beams: 0 is too small; use at least 1"),
        ({"length_penalty": -0.1}, "length_penalty: -0.1 is too small; use at least 0"),
        ({"length_penalty": float("nan")}, "length_penalty: nan is not a finite number; use a number"),
        ({"max_extra_tokens": 0}, "max_extra_tokens: 0 is too small; use"),
        ({"beam": 3}, "beam: is not a known key; did you mean num_beams?"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Beam.parse(settings)
    assert message in str(caught.value)


def candidates(*slots: list[tuple[float, int, int]]) -> Candidates:
    """Of each slot log-probabilities, beams and tokens, best first."""
    logs, beams, tokens = np.array(slots).transpose(2, 0, 1)
    return Candidates(logs, beams.astype(np.int64), tokens.astype(np.int64))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
def test_a_search_goes_on_while_a_beam_is_better_than_the_worst_finished(length_penalty: float) -> None:
    """Beams between the best finished and the worst of those that are kept may still end better than either."""
    hypotheses = Hypotheses(1, 9, END, END, Beam(num_beams=2, length_penalty=length_penalty))
    scale = 1 / hypotheses.settings.score(1.0, 2)
    for score, over in ((-0.5, []), (-2.0, []), (-3.5, [0])):
        hypotheses.begin(0, 9)
        assert not hypotheses.extend(candidates([(-0.1, 0, 1), (-0.2, 0, 2)]))
        hypotheses.finished[0] = [(-1.0, [1]), (-3.0, [2]), (-4.0, [3])]  # the third is no longer among the best two
        assert hypotheses.extend(candidates([(score * scale, 0, 1), (-90.0, 1, 1)])) == over, score
    hypotheses.begin(0, 9)
    hypotheses.finished[0] = [(-1.0, [1])]
    assert not hypotheses.extend(candidates([(-9.0, 0, 1), (-9.5, 0, 2)]))  # not yet enough of them


def test_a_beam_that_goes_on_stays_in_its_row() -> None:
    hypotheses = Hypotheses(2, 9, END, END, Beam(num_beams=4))
    hypotheses.begin(0, 9)
    hypotheses.begin(1, 9)
    first = candidates(
        2 * [(-1.0, 0, 3), (-2.0, 0, 1), (-3.0, 0, 2), (-4.0, 0, 4)], [(-1.0, 0, 1 + n) for n in range(8)]
    )
    assert not hypotheses.extend(first)
    assert hypotheses.parents.tolist() == 2 * [[0, 0, 0, 0]] and hypotheses.newest[0].tolist() == [3, 1, 2, 4]
    second = [(-1.5, 2, 1), (-2.0, 1, 1), (-2.5, 2, 3), (-3.0, 2, 2)]
    assert not hypotheses.extend(candidates(2 * second, 2 * [(-1.0, 3, 9)] + 6 * [(-2.0, 0, 9)]))
    assert hypotheses.parents.tolist() == [[2, 1, 2, 2], [0, 3, 0, 3]]
    assert hypotheses.tokens[0, :, :2].tolist() == [[2, 3], [1, 1], [2, 1], [2, 2]]
    assert hypotheses.newest[0].tolist() == [3, 1, 1, 2] and hypotheses.scores[0].tolist() == [-2.5, -2.0, -1.5, -3.0]
    assert hypotheses.starts[0, [0, 3]].tolist() == [1, 1]  # the start alone is alike
    hypotheses.move(0, 1)
    third = [(-2.0, 0, 1), (-2.1, 0, 2), (-2.5, 1, 1), (-3.0, 0, 3)]
    assert not hypotheses.extend(candidates(2 * third, 2 * third))
    # of the state, the start and one token are alike in the rows 0, 2 and 3
    for slot in (0, 1):
        assert hypotheses.parents[slot].tolist() == [0, 1, 0, 0] and hypotheses.starts[slot, 2:].tolist() == [2, 2]
        assert hypotheses.tokens[slot, :, :3].tolist() == [[2, 3, 1], [1, 1, 1], [2, 3, 2], [2, 3, 3]]


def searched(model: EncoderDecoder, sources: list[Tokens], rows: int, patch: pytest.MonkeyPatch) -> list[Finished]:
    """What a search of three beams finishes, of `rows` rows at once."""
    patch.setattr(beam, "max_rows", lambda dtype: rows)
    patch.setattr(beam, "BATCH_SIZE", 4)
    return finished_targets(model, sources, END, END, Beam(num_beams=3, max_extra_tokens=6))


def test_recorded_searches_finish_what_plain_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels("native")
    sources = [[*source, END] for length in range(4) for source in every(4, length)][:30]
    for name in SEEDS:
        model = built(name)
        recorded = searched(model, sources, 15, monkeypatch)
        with monkeypatch.context() as plain:
            plain.setattr(step, "library", lambda: None)
            expected = searched(model, sources, 15, plain)
        for ours, theirs in zip(recorded, expected, strict=True):
            with case(name):
                assert [target for _, target in ours] == [target for _, target in theirs]
                assert [score for score, _ in ours] == pytest.approx([score for score, _ in theirs], abs=1e-5)


def test_steps_of_a_search_are_recorded_and_stay_full(model: EncoderDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are read once, those that end leave their rows to others, and steps become smaller at the end."""
    kernels("native")
    monkeypatch.setattr(beam, "max_rows", lambda dtype: 12)
    monkeypatch.setattr(beam, "BATCH_SIZE", 3)
    encode, call, read, rows, steps = model.encode, DecodeStep.__call__, [], [], set[DecodeStep]()

    def counted_encode(source: torch.Tensor, context: ForwardContext) -> object:
        read.append(len(source))
        return encode(source, context)

    def counted_step(step: DecodeStep, tokens: torch.Tensor) -> torch.Tensor:
        rows.append(len(tokens))
        steps.add(step)
        return call(step, tokens)

    monkeypatch.setattr(model, "encode", counted_encode)
    monkeypatch.setattr(DecodeStep, "__call__", counted_step)
    sources = [*SOURCES * 2, SOURCES[2], SOURCES[2]]  # of which the four longest are the same, and end together
    targets = Search(model, sources, END, END, Beam(num_beams=3, max_extra_tokens=5)).run()
    assert all(targets) and sum(read) == len(targets) == 12 and max(read) == 3
    assert all(step.replay is not None for step in steps)
    together = rows.copy()
    rows.clear()
    Search(model, [SOURCES[2]] * 4 + [[END]], END, END, Beam(num_beams=3, max_extra_tokens=5)).run()
    assert set(together) <= {3, 6, 12} and together == sorted(together, reverse=True)
    assert set(rows) == {12, 3} and rows == sorted(rows, reverse=True)


def test_targets_share_the_keys_and_values_of_their_source(model: EncoderDecoder) -> None:
    source, lengths = torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0]]), torch.tensor([4, 2])
    tokens = torch.randint(0, 5, (6, 3), generator=torch.Generator().manual_seed(0))
    state = model.new_state(source, lengths, num_beams=3)
    apart = model.new_state(source.repeat_interleave(3, 0), lengths.repeat_interleave(3))
    assert state.nbytes < apart.nbytes or not any(block.cross for block in model.decoder.blocks)
    with torch.no_grad():
        for ours, theirs in zip(*(two_passes(model, tokens, one) for one in (state, apart)), strict=True):
            assert distance(ours, theirs) < 1e-6


def two_passes(model: EncoderDecoder, tokens: torch.Tensor, state: State) -> list[torch.Tensor]:
    first = model(tokens[:, :2], state)
    return [first.logits, model(tokens[:, 2:], first.state).logits]


def test_the_rules_of_a_target_go_on_from_those_of_the_target_that_it_extends(model: EncoderDecoder) -> None:
    settings = Beam(
        num_beams=3, no_repeat_ngram_size=2, repetition_penalty=1.4, max_extra_tokens=6, bad_words_ids=((1, 2),)
    )

    class FromTheStart(Search):
        def _adjust(self, logs: torch.Tensor) -> None:
            self._processors = {}
            super()._adjust(logs)

    going_on, from_the_start = (each(model, SOURCES, END, END, settings).run() for each in (Search, FromTheStart))
    assert going_on == from_the_start
    assert any(len(tokens) > 2 for targets in going_on for _, tokens in targets)
