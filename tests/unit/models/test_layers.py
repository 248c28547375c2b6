"""Stacks of layers: explicit in memory, as short as their pattern in a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype import spec
from archetype.spec.repeats import MAX_LAYERS
from tests.helpers.examples import examples
from tests.helpers.strategies import decoders


def block(num_heads: int) -> spec.Block:
    return spec.Block(
        wiring=spec.PreNorm(norm=spec.RMSNorm()),
        mixer=spec.Attention(num_heads=num_heads),
        feedforward=spec.MLP(d_ff=8, activation="relu"),
    )


A, B, C = block(1), block(2), block(4)


def decoder(*layers: spec.Block) -> spec.Decoder:
    return spec.Decoder(vocab_size=5, context_length=8, d_model=8, layers=layers, final_norm=spec.NoNorm())


def expanded(runs: list[tuple[int, tuple[spec.Block, ...]]]) -> tuple[spec.Block, ...]:
    return tuple(layer for times, group in runs for layer in group * times)


def test_repeat_writes_the_group_out() -> None:
    assert spec.repeat(2, A, B) == (A, B, A, B)


def test_cycle_takes_the_blocks_in_turn_and_may_stop_within() -> None:
    assert spec.cycle(5, A, B) == (A, B, A, B, A)


@given(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=24))
def test_runs_reproduce_the_stack(layers: list[spec.Block]) -> None:
    assert expanded(spec.runs(layers)) == tuple(layers)


@given(
    st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=5),
    st.integers(2, 40),
    st.lists(st.sampled_from([A, B, C]), max_size=2),
)
def test_a_repeated_group_is_written_once(group: list[spec.Block], times: int, tail: list[spec.Block]) -> None:
    runs = spec.runs([*group * times, *tail])
    assert sum(len(written) for _, written in runs) <= len(group) + len(tail) + len(group) - 1


@pytest.mark.parametrize(
    ("layers", "runs"),
    [
        ((A,), [(1, (A,))]),
        ((A, A, A), [(3, (A,))]),
        ((A, B, C), [(1, (A,)), (1, (B,)), (1, (C,))]),
        ((A, B) * 13, [(13, (A, B))]),
        ((A, A, B) * 4, [(4, (A, A, B))]),
        ((C, *(A, B) * 3), [(1, (C,)), (3, (A, B))]),
        ((*(A,) * 5, *(B,) * 7), [(5, (A,)), (7, (B,))]),
        ((A, B, A, B, A), [(2, (A, B)), (1, (A,))]),
    ],
)
def test_patterns_are_found(layers: tuple[spec.Block, ...], runs: list[tuple[int, tuple[spec.Block, ...]]]) -> None:
    assert spec.runs(layers) == runs


def test_a_deep_stack_of_no_pattern_is_read_in_time() -> None:
    """De Bruijn-like: no group of less than the whole repeats, so every length is tried at every place."""
    layers = [A if bin(i * 2654435761).count("1") % 2 else B for i in range(MAX_LAYERS)]
    assert expanded(spec.runs(layers)) == tuple(layers)


@pytest.mark.parametrize(
    ("layers", "written"),
    [
        ((A, A, A), [{"repeat": 3, "block": A.dump()}]),
        ((A, B, A, B), [{"repeat": 2, "blocks": [A.dump(), B.dump()]}]),
        ((A, B, C), [{"block": A.dump()}, {"block": B.dump()}, {"block": C.dump()}]),
        ((C, A, A), [{"block": C.dump()}, {"repeat": 2, "block": A.dump()}]),
    ],
)
def test_a_file_holds_the_runs(layers: tuple[spec.Block, ...], written: list[object]) -> None:
    assert decoder(*layers).dump()["layers"] == written


@pytest.mark.parametrize(
    "written",
    [
        [{"repeat": 2, "blocks": [A.dump(), B.dump()]}],
        [{"repeat": 2, "blocks": (A, B)}],
        [A.dump(), {"block": B.dump()}, A, B],
        [{"repeat": 1, "block": A}, {"repeat": 1, "blocks": [B, A, B]}],
        (A, B, A, B),
    ],
)
def test_every_way_to_write_a_stack_gives_the_same_tuple(written: object) -> None:
    read = spec.parse(
        {"vocab_size": 5, "context_length": 8, "d_model": 8, "layers": written, "final_norm": {"kind": "none"}}
    )
    assert read.layers == (A, B, A, B)


@given(decoders())
@examples(8)
def test_the_number_of_layers_is_the_length_of_the_tuple(drawn: spec.Decoder) -> None:
    assert drawn.num_layers == len(drawn.layers)
