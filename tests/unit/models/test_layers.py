"""Stacks of layers: explicit in memory, as short as their pattern in a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype import spec
from archetype.errors import SpecError
from archetype.io.yaml import yaml_value
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
    return spec.Decoder(vocab_size=5, context_length=8, d_model=8, layers=layers, final_norm=spec.RMSNorm())


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


# layers that use the weights of earlier ones


def used(block: spec.Block, layer: int, reinject: bool = False) -> spec.Block:
    return block.replace(weights_of=layer, reinject=reinject)


ONE, TWO = A.dump(), [A.dump(), B.dump()]
SHARED: list[tuple[tuple[spec.Block, ...], list[dict[str, object]]]] = [
    ((A, used(A, 0), used(A, 0)), [{"repeat": 3, "shared": True, "block": ONE}]),
    ((A, B, used(A, 0), used(B, 1)), [{"repeat": 2, "shared": True, "blocks": TWO}]),
    (
        (A, B, used(A, 0, True), used(B, 1), used(A, 0, True), used(B, 1)),
        [{"repeat": 3, "shared": True, "reinject": True, "blocks": TWO}],
    ),
    (
        (A, B, used(A, 0).replace(norm_between=True), used(B, 1)),
        [{"repeat": 2, "shared": True, "norm_between": True, "blocks": TWO}],
    ),
    (
        (C, A, used(A, 1), C, C),
        [{"block": C.dump()}, {"repeat": 2, "shared": True, "block": ONE}, {"repeat": 2, "block": C.dump()}],
    ),
    ((A, used(A, 0), A, used(A, 2)), [{"repeat": 2, "shared": True, "block": ONE}] * 2),
    # what no group says: one layer far from its own, one of a group alone, an input that is not read every time
    ((A, B, used(A, 0)), [{"block": ONE}, {"block": B.dump()}, {"block": used(A, 0).dump()}]),
    (
        (A, used(A, 0), used(A, 0, True)),
        [{"repeat": 2, "shared": True, "block": ONE}, {"block": used(A, 0, True).dump()}],
    ),
]


@pytest.mark.parametrize(("layers", "written"), SHARED)
def test_a_file_says_shared_layers_once_and_reads_them_back(
    layers: tuple[spec.Block, ...], written: list[dict[str, object]]
) -> None:
    model = decoder(*layers)
    assert model.dump()["layers"] == written
    assert spec.parse(yaml_value(spec.to_yaml(model), "")) == model
    assert spec.parse(model.dump(each_layer=True)) == model


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([A, used(A, 1)], "layers[1].weights_of: 1 is not an earlier layer; use less than 1"),
        ([used(A, 0)], "layers[0].weights_of: 0 is not an earlier layer; remove it"),
        ([A, used(A, 0), used(A, 1)], "layers[2].weights_of: layer 1 itself shares another layer's weights; use 0"),
        ([A, used(B, 0)], "layers[1]: mixer differs from layer 0, whose weights it uses; make them equal"),
        ([A, A.dump() | {"reinject": True}], "layers[1].reinject: applies only to a layer "
         "with weights_of; set weights_of"),
        ([A, A.dump() | {"weights_of": -1}], "layers[1].weights_of: -1 is too small; use at least 0"),
        ([A, A.dump() | {"norm_between": True}], "layers[1].norm_between: applies only to a "
         "layer with weights_of; set weights_of"),
        ([A, used(A, 0).replace(norm_between=True)], "layers[1].norm_between: there is no final norm; remove it, or "
         "use final_norm: rms and residual: sum"),
        ([{"repeat": 2, "norm_between": True, "block": ONE}], "layers[0].norm_between: only shared layers have passes "
         "with a norm between them; add shared: true"),
        ([{"repeat": 2, "reinject": True, "block": ONE}], "layers[0].reinject: only shared layers can read their input"
         " again; add shared: true"),
    ],
)  # fmt: skip
def test_weights_of_another_layer_are_refused_in_one_line(layers: list[object], message: str) -> None:
    sizes = {"vocab_size": 5, "context_length": 8, "d_model": 8, "final_norm": "none"}
    with pytest.raises(SpecError) as caught:
        spec.parse(sizes | {"layers": layers})
    assert str(caught.value) == message


def test_only_one_vector_is_scaled_to_length_1() -> None:
    sizes = {"vocab_size": 5, "context_length": 8, "d_model": 8, "residual": {"kind": "streams"}}
    with pytest.raises(
        SpecError, match=r"^layers\[1\].reinject: unit needs a plain residual sum, but residual is streams"
    ):
        spec.parse(sizes | {"layers": [{"repeat": 2, "shared": True, "reinject": "unit", "block": ONE}]})
