"""A target with its source: with a state as taught, in chunks as whole, in a batch as alone, nothing of the future."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archetype import families, spec
from archetype.models.build import build
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.state import State
from tests.helpers.combinations import EXACT, combined, hybrid, padded, rows_of, text
from tests.helpers.examples import examples
from tests.helpers.passes import forward_step, taught
from tests.helpers.strategies import CONTEXT, VOCABULARY, encoder_decoders
from tests.helpers.weights import distance, randomize

TINY = sorted(name for name in families.presets() if name.endswith("-tiny"))
EXAMPLES = examples(8)
CUTS = st.sets(st.integers(1, CONTEXT - 1), max_size=4).map(sorted)
LENGTHS = st.lists(st.tuples(st.integers(1, CONTEXT), st.integers(1, CONTEXT - 1)), min_size=2, max_size=4)
SOURCE_WORDS = 9  # of the smallest vocabulary that is drawn for sources
WRONG = 1e-4


def model_of(drawn: spec.EncoderDecoder) -> EncoderDecoder:
    """The model of a specification, every tensor random, ready to evaluate."""
    model = build(drawn).double()
    randomize(model)
    return model.requires_grad_(False)


def source(batch: int, length: int, seed: int = 50) -> Tensor:
    """Random tokens of every source vocabulary."""
    return text(batch, length, seed, SOURCE_WORDS)


def sources_of(lengths: list[int]) -> list[Tensor]:
    return [source(1, length, 50 + index)[0] for index, length in enumerate(lengths)]


def in_chunks(model: EncoderDecoder, tokens: Tensor, state: State, cuts: list[int]) -> tuple[Tensor, State]:
    """All logits of a target that is given piece by piece, each with as much of the state as it needs."""
    pieces = []
    for start, end in pairwise([0, *cuts, tokens.shape[1]]):
        logits, state = forward_step(model, tokens[:, start:end], state.narrow(end))
        pieces.append(logits)
    return torch.cat(pieces, 1), state


def everything() -> spec.EncoderDecoder:
    """A target's layers of all kinds, each with a look at the source, and a source's that read both ways."""
    cross = spec.Attention(num_heads=2, num_kv_heads=1)
    layers = tuple(block.replace(cross_attention=cross) for block in hybrid().layers)
    both_ways = combined({"mixer": "lstm"}).layers[0].replace(mixer=spec.LSTM(bidirectional=True))
    relative = combined({"position": "relative", "pattern": "window"}).layers[0]
    return spec.EncoderDecoder(
        vocab_size=VOCABULARY, context_length=CONTEXT, d_model=8,
        encoder=spec.Stack(layers=(both_ways, relative, *hybrid().layers), final_norm=spec.LayerNorm()),
        decoder=spec.Stack(layers=layers, final_norm=spec.RMSNorm()),
    )  # fmt: skip


@pytest.mark.shapes
@pytest.mark.parametrize("cuts", [[], [5, 6], list(range(1, CONTEXT))])
def test_with_state_as_taught_through_layers_of_every_kind(cuts: list[int]) -> None:
    model, target, given_source = model_of(everything()), text(3, CONTEXT), source(3, 11)
    num_tokens = torch.tensor([11, 1, 6])
    logits, _ = in_chunks(model, target, model.new_state(given_source, num_tokens), cuts)
    assert distance(logits, taught(model, given_source, target, num_tokens)) < EXACT


@pytest.mark.parametrize("name", [name for name in TINY if families.preset(name).kind == "encoder_decoder"])
def test_small_presets_past_their_windows(name: str) -> None:
    """With a state in chunks as taught, and each pair as alone; in float32."""
    model = build(families.preset(name))
    randomize(model)
    model.requires_grad_(False)
    sources, target, counts = text(3, 60, 0, 256), text(3, 70, 1, 256), torch.tensor([60, 3, 33])
    logits = taught(model, sources, target, counts)
    chunked_logits, _ = in_chunks(model, target, model.new_state(sources, counts), [20, 21, 50])
    assert distance(chunked_logits, logits) < EXACT
    for row, count in enumerate(counts.tolist()):
        assert distance(logits[row], taught(model, sources[row : row + 1, :count], target[row : row + 1])[0]) < EXACT


@given(encoder_decoders(), st.integers(1, CONTEXT), st.integers(1, CONTEXT), CUTS)
@EXAMPLES
def test_chunks_with_a_state_as_taught(
    drawn: spec.EncoderDecoder, source_length: int, length: int, cuts: list[int]
) -> None:
    model, target, given_source = model_of(drawn), text(2, length), source(2, source_length)
    state = model.new_state(given_source, capacity=length)
    logits, state = in_chunks(model, target, state, [cut for cut in cuts if cut < length])
    assert distance(logits, taught(model, given_source, target)) < EXACT
    assert state.lengths.tolist() == [length, length]


@pytest.mark.shapes
@given(encoder_decoders(), LENGTHS)
@EXAMPLES
def test_a_batch_as_each_pair_alone(drawn: spec.EncoderDecoder, lengths: list[tuple[int, int]]) -> None:
    """Taught, begun with a state, and one token further."""
    model = model_of(drawn)
    source_lengths, target_lengths = (list(side) for side in zip(*lengths, strict=True))
    sources, targets = sources_of(source_lengths), rows_of([length + 1 for length in target_lengths])
    beginnings = padded([row[:-1] for row in targets])
    together, sizes, num_tokens = padded(sources), torch.tensor(source_lengths), torch.tensor(target_lengths)
    logits = taught(model, together, beginnings, sizes, num_tokens)
    begun, state = forward_step(model, beginnings, model.new_state(together, sizes), num_tokens)
    last, _ = forward_step(model, beginnings, model.new_state(together, sizes), num_tokens, last_only=True)
    newest, state = forward_step(model, torch.stack([row[-1:] for row in targets]), state)
    assert state.lengths.tolist() == [length + 1 for length in target_lengths]
    for index, (row, length) in enumerate(zip(targets, target_lengths, strict=True)):
        expected = taught(model, sources[index][None], row[None])[0]
        assert distance(logits[index, :length], expected[:length]) < EXACT
        assert distance(begun[index, :length], expected[:length]) < EXACT
        assert distance(last[index, 0], expected[length - 1]) < EXACT
        assert distance(newest[index, 0], expected[length]) < EXACT


@given(encoder_decoders(), st.integers(1, 6), st.integers(0, SOURCE_WORDS - 1))
@EXAMPLES
def test_what_stands_in_the_sources_padding_changes_nothing(
    drawn: spec.EncoderDecoder, length: int, filler: int
) -> None:
    model, target, row = model_of(drawn), text(1, 7), source(1, length)[0]
    num_tokens = torch.tensor([length])
    expected = taught(model, padded([row], 8), target, num_tokens)
    assert distance(taught(model, padded([row], 8, filler), target, num_tokens), expected) < EXACT
    logits, _ = forward_step(model, target, model.new_state(padded([row], 8, filler), num_tokens))
    assert distance(logits, expected) < EXACT


@given(encoder_decoders(), st.permutations(range(3)), st.integers(0, 2))
@EXAMPLES
def test_rows_leave_and_join_with_their_sources(drawn: spec.EncoderDecoder, order: list[int], place: int) -> None:
    """Some go on in another order, one of them twice; then another pair, of a shorter source, takes a place."""
    model = model_of(drawn)
    lengths, source_lengths = [3, 7, 1], [9, 4, 6]
    targets, sources = rows_of([length + 2 for length in lengths]), sources_of(source_lengths)
    together, sizes = padded(sources), torch.tensor(source_lengths)
    beginnings = padded([row[:-2] for row in targets])
    _, state = forward_step(model, beginnings, model.new_state(together, sizes), torch.tensor(lengths))

    def expected(index: int) -> Tensor:
        return taught(model, sources[index][None], targets[index][None])[0]

    chosen = [order[0], order[1], order[0]]
    fewer = state.select(torch.tensor(chosen))
    logits, fewer = forward_step(model, torch.stack([targets[index][-2:-1] for index in chosen]), fewer)
    for row, index in enumerate(chosen):
        assert distance(logits[row, 0], expected(index)[-2]) < EXACT
    new_source, new_target = source(1, 5, 90), text(1, 6, 91)
    _, newcomer = forward_step(model, new_target[:, :5], model.new_state(new_source, capacity=5))
    fewer.insert(torch.tensor([place]), newcomer)
    newest = torch.stack([targets[index][-1:] for index in chosen])
    newest[place] = new_target[0, 5:]
    logits, _ = forward_step(model, newest, fewer)
    for row, index in enumerate(chosen):
        expected_logits = taught(model, new_source, new_target)[0] if row == place else expected(index)
        assert distance(logits[row, 0], expected_logits[-1]) < EXACT


@given(encoder_decoders(), st.integers(1, CONTEXT - 1))
@EXAMPLES
def test_a_targets_future_changes_nothing(drawn: spec.EncoderDecoder, seen: int) -> None:
    model, given_source, target = model_of(drawn), source(2, 7), text(2, CONTEXT)
    changed = torch.cat((target[:, :seen], text(2, CONTEXT, seed=1)[:, seen:]), 1)
    before, after = taught(model, given_source, target), taught(model, given_source, changed)
    assert distance(before[:, :seen], after[:, :seen]) < EXACT


@given(encoder_decoders())
@EXAMPLES
def test_pairs_do_not_see_each_other(drawn: spec.EncoderDecoder) -> None:
    model, given_source, target = model_of(drawn), source(2, 7), text(2, 6)
    others = torch.cat((given_source[:1], source(1, 7, 1))), torch.cat((target[:1], text(1, 6, 1)))
    assert distance(taught(model, *others)[0], taught(model, given_source, target)[0]) < EXACT


LSTM = combined({"mixer": "lstm", "feedforward": "none"}).layers[0]
VIEWS = {
    "state_bridge": (None, spec.StateBridge()),
    "cross": (spec.Attention(num_heads=2), None),
    "additive cross": (spec.Attention(num_heads=1, score="additive"), None),
    "both": (spec.Attention(num_heads=2), spec.StateBridge()),
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_token_of_the_source_reaches_every_token_of_the_target(view: str) -> None:
    cross, bridge = VIEWS[view]
    drawn = everything().replace(
        encoder=spec.Stack(layers=(LSTM,), final_norm=spec.NoNorm()),
        decoder=spec.Stack(layers=(LSTM.replace(cross_attention=cross),), final_norm=spec.NoNorm()),
        state_bridge=bridge,
    )
    model, given_source, target = model_of(drawn), source(1, 5), text(1, 4)
    expected = taught(model, given_source, target)
    for place in range(5):
        changed = given_source.clone()
        changed[0, place] = (changed[0, place] + 1) % SOURCE_WORDS
        differences = (taught(model, changed, target) - expected).abs().amax(-1)[0]
        assert (differences > WRONG).all()
