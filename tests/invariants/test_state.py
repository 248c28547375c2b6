"""With a state as without, in chunks as whole, in a batch as alone: the same logits.

The one place where this is proven, for all parts: drawn models, the grid of all pairs of parts (each part in every run,
each pair in the soak), and small presets past their windows. Targets with their sources are in
test_encoder_decoders.py.
"""

from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from archetype import families, spec
from archetype.checking.decoding import (
    chunks_are_whole,
    padding_leaves_states,
    rows_join_and_leave,
    state_changes_nothing,
)
from archetype.checking.subject import Subject
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.nn.state import State
from tests.helpers import causal as writing
from tests.helpers import forked
from tests.helpers.combinations import EXACT, SHARE, combined, hybrid, model_of, padded, rows_of, text
from tests.helpers.examples import every, examples
from tests.helpers.passes import forward_step
from tests.helpers.strategies import CONTEXT, VOCABULARY, causal_models
from tests.helpers.weights import distance

EXAMPLES = examples(8)
# where a text is cut
CUTS = st.sets(st.integers(1, CONTEXT - 1), max_size=4).map(sorted)
LENGTHS = st.lists(st.integers(1, CONTEXT), min_size=2, max_size=4)


TINY = sorted(
    name for name in families.presets()
    if name.endswith("-tiny") and isinstance(families.preset(name), spec.CausalSpec)
)  # fmt: skip
FULL = combined({"position": "rotary"})
WINDOWED = combined({"position": "rotary", "pattern": "window"})
# Beside the grid: all kinds of layers in one stack, and what writes without being a decoder.
PARTS = spec.SizedStack(d_model=8, layers=hybrid().layers[:2], final_norm=spec.RMSNorm())
OTHERS = [
    pytest.param(hybrid(), id="hybrid"),
    pytest.param(spec.NGram(vocab_size=VOCABULARY, context_length=CONTEXT, n=4, d_model=6, hidden=(9,)), id="ngram"),
    pytest.param(
        spec.MegaByte(
            vocab_size=VOCABULARY, context_length=CONTEXT, patch_size=2, global_model=PARTS.replace(d_model=12),
            local_model=PARTS,
        ),
        id="megabyte",
    ),
]  # fmt: skip


def in_chunks(model: CausalModel, tokens: Tensor, state: State, cuts: list[int]) -> tuple[Tensor, State]:
    """All logits of a text that is given piece by piece."""
    pieces = []
    for start, end in pairwise([0, *cuts, tokens.shape[1]]):
        logits, state = forward_step(model, tokens[:, start:end], state)
        pieces.append(logits)
    return torch.cat(pieces, 1), state


def sized(lengths: list[int]) -> Tensor:
    return torch.tensor(lengths)


@pytest.mark.shapes
@pytest.mark.parametrize("drawn", SHARE + OTHERS)
def test_a_whole_text_with_state_as_without(drawn: spec.CausalSpec) -> None:
    state_changes_nothing(Subject(drawn).exact)


@pytest.mark.parametrize(
    "drawn", [*SHARE, *(pytest.param(*one.values, id=one.id, marks=pytest.mark.shapes) for one in OTHERS)]
)
def test_with_state_as_without(drawn: spec.CausalSpec) -> None:
    """In chunks, token by token, past every window; in padded rows that rest; among rows that join and leave.

    Shapes of the many short passes are checked in the stack that has all kinds of layers.
    """
    subject = Subject(drawn).exact
    for check in (chunks_are_whole, padding_leaves_states, rows_join_and_leave):
        check(subject)


@pytest.mark.parametrize(
    "name", every(6, (name for name in TINY if families.preset(name).kind in ("decoder", "ngram", "megabyte")))
)
def test_small_presets_past_their_windows(name: str) -> None:
    """In chunks and narrow views, in padded rows that rest, and among rows that join and leave; in float32."""
    model = writing.drawn(families.preset(name))
    writing.chunks_as_whole(model, text(2, 100, vocabulary=256), [40, 41, 42, 75])
    writing.batch_as_single(model, [70, 1, 40], 36)
    writing.rows_join_and_leave(model, 50)


@given(causal_models(), st.integers(1, CONTEXT), CUTS)
@EXAMPLES
def test_chunks_as_whole_in_any_model(drawn: spec.CausalSpec, length: int, cuts: list[int]) -> None:
    model = model_of(drawn)
    tokens = text(2, length)
    cuts = [cut for cut in cuts if cut < length]
    logits, state = in_chunks(model, tokens, model.new_state(2, length), cuts)
    whole, _ = in_chunks(model, tokens, model.new_state(2), [])
    assert distance(logits, whole) < EXACT
    assert distance(logits, model(tokens).logits) < EXACT
    assert state.lengths.tolist() == [length, length]


@given(causal_models())
@examples(6)
def test_token_by_token_as_whole(drawn: spec.CausalSpec) -> None:
    model = model_of(drawn)
    tokens = text(2, CONTEXT)
    logits, _ = in_chunks(model, tokens, model.new_state(2), list(range(1, CONTEXT)))
    assert distance(logits, model(tokens).logits) < EXACT


@given(causal_models(), LENGTHS)
@EXAMPLES
def test_a_batch_as_each_row_alone(drawn: spec.CausalSpec, lengths: list[int]) -> None:
    model = model_of(drawn)
    rows = rows_of(lengths)
    together = model(padded(rows), num_tokens=sized(lengths)).logits
    for index, row in enumerate(rows):
        assert distance(together[index, : lengths[index]], model(row[None]).logits[0]) < EXACT


@given(causal_models(), LENGTHS)
@EXAMPLES
def test_a_batch_goes_on_as_each_row_alone(drawn: spec.CausalSpec, lengths: list[int]) -> None:
    """A padded beginning, then tokens that overwrite what the padding left."""
    model = model_of(drawn)
    lengths = [min(length, CONTEXT - 3) for length in lengths]
    rows = rows_of([length + 3 for length in lengths])
    beginnings = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    _, state = forward_step(model, padded(beginnings), model.new_state(len(rows)), sized(lengths))
    assert state.lengths.tolist() == lengths
    for step in range(3):
        tokens = torch.stack([row[length + step] for row, length in zip(rows, lengths, strict=True)])
        logits, state = forward_step(model, tokens[:, None], state)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            assert distance(logits[index, 0], model(row[None, : length + step + 1]).logits[0, -1]) < EXACT


@pytest.mark.shapes
@given(causal_models(), LENGTHS, LENGTHS)
@EXAMPLES
def test_padded_chunk_after_padded_chunk(drawn: spec.CausalSpec, first: list[int], second: list[int]) -> None:
    model = model_of(drawn)
    first, second = zip(*((a // 2, b // 2) for a, b in zip(first, second, strict=False)), strict=True)
    assume(max(second) > 0)
    rows = rows_of([a + b for a, b in zip(first, second, strict=True)])
    whole = [model(row[None]).logits[0] if len(row) else None for row in rows]
    state = model.new_state(len(rows))
    for begins, num_tokens in (([0] * len(rows), first), (first, second)):
        pieces = [row[begin : begin + count] for row, begin, count in zip(rows, begins, num_tokens, strict=True)]
        if max(num_tokens) == 0:
            continue
        logits, state = forward_step(model, padded(pieces), state, sized(list(num_tokens)))
        for index, (begin, count) in enumerate(zip(begins, num_tokens, strict=True)):
            if count:
                assert distance(logits[index, :count], whole[index][begin : begin + count]) < EXACT


@pytest.mark.parametrize("capacity", [8, CONTEXT])
def test_padding_may_reach_beyond_the_capacity(capacity: int) -> None:
    """A nearly full row beside one that has just begun."""
    model = model_of(FULL)
    full, begun = text(1, capacity)[0], text(1, 5, seed=1)[0]
    state = model.new_state(2, capacity)
    _, state = forward_step(model, padded([full[:-1], begun[:1]]), state, sized([capacity - 1, 1]))
    logits, state = forward_step(model, padded([full[-1:], begun[1:]]), state, sized([1, 4]))
    assert state.lengths.tolist() == [capacity, 5]
    assert distance(logits[0, 0], model(full[None]).logits[0, -1]) < EXACT
    assert distance(logits[1], model(begun[None]).logits[0, 1:]) < EXACT


@given(causal_models(), LENGTHS)
@EXAMPLES
def test_last_only_is_the_last_of_all(drawn: spec.CausalSpec, lengths: list[int]) -> None:
    model = model_of(drawn)
    tokens, num_tokens = padded(rows_of(lengths)), sized(lengths)
    every = model(tokens).logits
    last = every[torch.arange(len(lengths)), num_tokens - 1]
    assert distance(model(tokens, last_only=True).logits, every[:, -1:]) < EXACT
    assert distance(model(tokens, num_tokens=num_tokens, last_only=True).logits[:, 0], last) < EXACT
    logits, _ = forward_step(model, tokens, model.new_state(len(lengths)), num_tokens, last_only=True)
    assert distance(logits[:, 0], last) < EXACT


@given(causal_models(), st.permutations(range(4)), st.integers(1, 4))
@EXAMPLES
def test_rows_leave_and_the_others_go_on(drawn: spec.CausalSpec, order: list[int], staying: int) -> None:
    """Also in another order, and one row several times over."""
    model = model_of(drawn)
    lengths = [3, 7, 1, 5]
    rows = rows_of([length + 1 for length in lengths])
    _, state = forward_step(model, padded([row[:-1] for row in rows]), model.new_state(4), sized(lengths))
    chosen = [*order[:staying], order[0]]
    fewer = state.select(torch.tensor(chosen))
    logits, fewer = forward_step(model, torch.stack([rows[index][-1:] for index in chosen]), fewer)
    for place, index in enumerate(chosen):
        assert distance(logits[place, 0], model(rows[index][None]).logits[0, -1]) < EXACT
    assert fewer.lengths.tolist() == [lengths[index] + 1 for index in chosen]


@given(causal_models())
@EXAMPLES
def test_a_selected_state_is_a_copy(drawn: spec.CausalSpec) -> None:
    """Two futures of one past do not touch each other."""
    model = model_of(drawn)
    tokens = text(1, 9)
    _, state = forward_step(model, tokens[:, :5], model.new_state(1))
    fork = state.select(torch.tensor([0]))
    _, state = forward_step(model, tokens[:, 5:8], state)
    model((tokens[:, 5:] + 1) % VOCABULARY, fork)
    logits, _ = forward_step(model, tokens[:, 8:], state)
    assert distance(logits, model(tokens).logits[:, 8:]) < EXACT


@given(causal_models(), st.integers(0, 2), st.integers(1, 6))
@EXAMPLES
def test_a_row_joins_where_another_was(drawn: spec.CausalSpec, place: int, length: int) -> None:
    """The newcomer's buffers are shorter, and the row before it was longer."""
    model = model_of(drawn)
    old, new = rows_of([9, 9, 9], seed=5), text(1, length + 2, seed=9)
    _, state = forward_step(model, torch.stack([row[:8] for row in old]), model.new_state(3))
    _, newcomer = forward_step(model, new[:, :length], model.new_state(1, length))
    state.insert(torch.tensor([place]), newcomer)
    rows = [new[0] if index == place else row for index, row in enumerate(old)]
    lengths = [length if index == place else 8 for index in range(3)]
    assert state.lengths.tolist() == lengths
    tokens = torch.stack([row[length] for row, length in zip(rows, lengths, strict=True)])[:, None]
    logits, state = forward_step(model, tokens, state)
    for index, (row, seen) in enumerate(zip(rows, lengths, strict=True)):
        assert distance(logits[index, 0], model(row[None, : seen + 1]).logits[0, -1]) < EXACT


@given(causal_models(), st.integers(6, CONTEXT))
@EXAMPLES
def test_a_narrow_view_reads_less_and_gives_the_same(drawn: spec.CausalSpec, slots: int) -> None:
    model = model_of(drawn)
    tokens = text(2, 8)
    expected = model(tokens).logits
    _, state = forward_step(model, tokens[:, :5], model.new_state(2))
    view = state.narrow(slots)
    assert view.nbytes <= state.nbytes
    logits, state = forward_step(model, tokens[:, 5:6], view)
    assert distance(logits, expected[:, 5:6]) < EXACT
    logits, state = forward_step(model, tokens[:, 6:], state)
    assert distance(logits, expected[:, 6:]) < EXACT
    assert state.capacity == CONTEXT


@pytest.mark.parametrize("slots", [5, CONTEXT])
def test_a_narrow_view_holds_the_first_places(slots: int) -> None:
    """A window has only a few, and all of them are needed to know where a position stands."""
    whole = model_of(FULL).new_state(2)
    assert whole.narrow(slots).nbytes == whole.nbytes * slots // CONTEXT
    ring = model_of(WINDOWED).new_state(2)
    assert ring.narrow(slots).nbytes == ring.nbytes == whole.nbytes * 5 // CONTEXT


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "mistral-tiny", "gemma2-tiny"])
@pytest.mark.parametrize("cuts", [[], [9, 10, 11, 36], list(range(1, 40))])
def test_a_state_in_bfloat16_costs_half_and_little_accuracy(name: str, cuts: list[int]) -> None:
    model = model_of(families.preset(name))
    tokens = text(2, 40)
    state = model.new_state(2, 40, torch.bfloat16)
    assert 2 * state.nbytes == model.new_state(2, 40, torch.float32).nbytes
    logits, state = in_chunks(model, tokens, state, cuts)
    assert logits.dtype == model.dtype
    assert {tensor.dtype for layer in state.layers for _, _, tensor in layer.tensors()} == {torch.bfloat16}
    assert 1e-5 < distance(logits, model(tokens).logits) < 2**-7  # one rounding of keys and values


def test_a_state_never_holds_more_than_the_context() -> None:
    model = model_of(families.preset("gpt2-tiny"))
    assert model.new_state(1, 10**9).capacity == model.new_state(1).capacity == model.spec.context_length
    assert model.new_state(1, 5).capacity == 5


STRETCHED = spec.Rotary(scaling=spec.DynamicScaling(factor=4.0, original_context_length=6))


def stretched() -> Decoder:
    block = FULL.layers[0]
    return model_of(FULL.replace(layers=(block.replace(mixer=block.mixer.replace(position=STRETCHED)),)))


def test_dynamic_scaling_does_stretch_past_the_trained_length() -> None:
    model = stretched()
    tokens = text(1, CONTEXT)
    whole = model(tokens).logits
    assert distance(whole[:, :6], model(tokens[:, :6]).logits) > 1e-4


def test_dynamic_scaling_follows_this_request_and_no_earlier_one() -> None:
    """A long request before a short one, and beside it, leaves no trace."""
    model = stretched()
    short, long = text(1, 5)[0], text(1, CONTEXT, seed=1)[0]
    alone = model(short[None]).logits[0]
    model(long[None])
    assert torch.equal(model(short[None]).logits[0], alone)
    beside = model(padded([short, long]), num_tokens=sized([5, CONTEXT])).logits
    assert distance(beside[0, :5], alone) < EXACT
    assert distance(beside[1], model(long[None]).logits[0]) < EXACT
    state = model.new_state(2)
    _, state = forward_step(model, padded([short[:4], long[:-1]]), state, sized([4, CONTEXT - 1]))
    logits, state = forward_step(model, torch.stack([short[4:], long[-1:]]), state)
    assert distance(logits[0, 0], alone[-1]) < EXACT
    single = model.new_state(1)  # keys keep the rotation of their own length (tests/parity/test_growing_texts.py)
    _, single = forward_step(model, long[None, :-1], single)
    assert distance(logits[1, 0], forward_step(model, long[None, -1:], single)[0][0, 0]) < EXACT


# Without the shape checks of the tests, which no compiler sees through.
COMPILED = """
import torch
from archetype import families
from archetype.models.build import build
from tests.helpers.passes import forward_step

for name in {names}:
    model = build(families.preset(name)).eval().requires_grad_(False)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    tokens = torch.arange(12).view(2, 6) * 7
    _, state = forward_step(model, tokens, model.new_state(2, 16), num_tokens=torch.tensor([6, 4]))
    twin = state.select(torch.tensor([0, 1]))
    for token in range(8):
        found, state = forward_step(step, torch.full((2, 1), token), state)
        expected, twin = forward_step(model, torch.full((2, 1), token), twin)
        torch.testing.assert_close(found, expected)
    print(name, len(graphs))
"""


@pytest.mark.parametrize("names", [["llama-tiny", "mamba-tiny"], pytest.param(["gpt2-tiny"], marks=pytest.mark.slow)])
def test_decoding_is_captured_once_as_one_graph(names: list[str]) -> None:
    done = forked.run(["python", "-c", COMPILED.format(names=names)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split("\n")[:-1] == [f"{name} 1" for name in names]
