"""Changed copies of a specification, and what differs between two."""

import json
from typing import Any

import pytest
from hypothesis import given

from archetype import families, spec
from archetype.errors import SpecError
from archetype.spec.edit import changes_of
from tests.helpers.examples import examples
from tests.helpers.strategies import decoders

TINY = families.preset("llama-tiny")
GPT2 = families.preset("gpt2-tiny")
MIXED = TINY.replace(layers=(TINY.layers[0], GPT2.layers[0], TINY.layers[0], GPT2.layers[0]))

CHANGES: list[tuple[str, list[tuple[str, Any, Any]]]] = [
    ("d_model=128", [("d_model", 64, 128)]),
    (" d_model = 128 ", [("d_model", 64, 128)]),
    ("name=other", [("name", "llama-tiny", "other")]),
    ("num_layers=5", [("num_layers", 2, 5)]),
    ("layers[*].mixer.num_kv_heads=4", [("layers[*].mixer.num_kv_heads", 2, 4)]),
    ("layers[1].mixer.num_kv_heads=1", [("layers[1].mixer.num_kv_heads", 2, 1)]),
    ("layers[*].mixer.position.theta=5e5", [("layers[*].mixer.position.theta", 10_000.0, 500_000.0)]),
    ("layers[*].wiring.norm={kind: layer, bias: false}",
     [("layers[*].wiring.norm.kind", "rms", "layer"), ("layers[*].wiring.norm.bias", "(absent)", False)]),
    ("layers[*].mixer.bias={q: true}",
     [("layers[*].mixer.bias", False, {"q": True})]),
    ("head.tied=true", [("head.tied", False, True)]),
    (
        "embedding.position.kind=learned",
        [("embedding.position.kind", "none", "learned"), ("embedding.position.offset", "(absent)", 0)],
    ),
    ("final_norm.kind=none", [
        ("final_norm.kind", "rms", "none"), ("final_norm.eps", 1e-5, "(absent)"),
        ("final_norm.weight", True, "(absent)"), ("final_norm.unit_offset", False, "(absent)"),
    ]),
    ("layers[-1].dropout=0.5", [("layers[1].dropout", 0.0, 0.5)]),
    ("layers[::2].dropout=0.5", [("layers[0].dropout", 0.0, 0.5)]),
    ("layers[0,1].dropout=0.5", [("layers[*].dropout", 0.0, 0.5)]),
    ("layers[*].mixer.position=alibi", [
        ("layers[*].mixer.position.kind", "rotary", "alibi"),
        ("layers[*].mixer.position.theta", 10_000.0, "(absent)"),
        ("layers[*].mixer.position.interleaved", False, "(absent)"),
        ("layers[*].mixer.position.reversed", False, "(absent)"),
        ("layers[*].mixer.position.scaling.kind", "none", "(absent)"),
        ("layers[*].mixer.position.scale", "(absent)", 1.0),
        ("layers[*].mixer.position.rounded", "(absent)", False),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("assignment", "changes"), CHANGES)
def test_an_assignment_changes_what_it_names_and_nothing_else(
    assignment: str, changes: list[tuple[str, Any, Any]]
) -> None:
    assert spec.differences(TINY, spec.assign(TINY, [assignment])) == changes


def test_the_original_stays_as_it_was() -> None:
    before = TINY.dump()
    spec.assign(TINY, ["layers[*].mixer.position.theta=5", "d_model=128"])
    assert TINY.dump() == before


def test_assignments_apply_together_and_are_checked_once() -> None:
    """65 is no width for 4 heads; with 5 heads it is."""
    with pytest.raises(SpecError):
        spec.assign(TINY, ["d_model=65"])
    both = spec.assign(TINY, ["d_model=65", "layers[*].mixer={kind: attention, num_heads: 5}"])
    assert (both.d_model, both.layers[0].mixer.num_heads) == (65, 5)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("d_model", "d_model: is not an assignment; write path=value, such as d_model=512"),
        ("=3", "=3: is not an assignment; write path=value, such as d_model=512"),
        ("d_modle=3", "d_modle: is not a known key; did you mean d_model?"),
        ("num_kv_heads=2", "num_kv_heads: is not a field of the model; write layers[*].mixer.num_kv_heads=..."),
        ("mixer=rnn", "mixer: is not a field of the model; write layers[*].mixer=..."),
        ("layers[*].mixer.pattern={kind: window, window: 4}", "layers[0].mixer.pattern.window: is not a known key; "
         "did you mean size?"),
        ("d model=3", "d model: is not a path; write it like layers[0].mixer.num_heads or layers[*].mixer"),
        ("layers[x].dropout=0", "layers[x].dropout: is not a path; write it like layers[0].mixer.num_heads or "
         "layers[*].mixer"),
        ("layers[-3].dropout=0", "layers[-3].dropout: there is no item -3; use 0 to 1, or * for all"),
        ("layers[2:].dropout=0", "layers[2:].dropout: selects no item of 2; write [0], [-1], [0,2], [::4] or [*]"),
        ("layers[::0].dropout=0", "layers[::0].dropout: selects no item of 2; write [0], [-1], [0,2], [::4] or [*]"),
        ("layers[1:2:3:4].dropout=0", "layers[1:2:3:4].dropout: [1:2:3:4] names no items; "
         "write [0], [-1], [0,2], [::4] or [*]"),
        ("layers[2].dropout=0", "layers[2].dropout: there is no item 2; use 0 to 1, or * for all"),
        ("layers.dropout=0", "layers.dropout: there is no item dropout; use 0 to 1, or * for all"),
        ("layers[0][1]=0", "layers[0][1]: [1] is inside a plain value; shorten the path"),
        ("name={", 'name:2:1: is not YAML: did not find expected node content; fix that line'),
        ("layers[*].mixer.num_kv_heads=3", "layers[0].mixer.num_kv_heads: 3 does not divide num_heads 4; "
         "use 1, 2 or 4"),
        ("num_layers=0", "num_layers: 0 is not a valid number of layers; use a whole number from 1 to 10000"),
        ("num_layers=true", "num_layers: True is not a valid number of layers; use a whole number from 1 to 10000"),
        ("num_layers=1000000000",
         "num_layers: 1000000000 is not a valid number of layers; use a whole number from 1 to 10000"),
    ],
)  # fmt: skip
def test_an_impossible_assignment_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.assign(TINY, [assignment])
    assert str(caught.value) == message


def test_num_layers_repeats_and_cuts_the_pattern() -> None:
    local, other = MIXED.layers[:2]
    assert spec.assign(MIXED, ["num_layers=5"]).layers == (local, other, local, other, local)
    assert spec.assign(MIXED, ["num_layers=1"]).layers == (local,)


def test_num_layers_does_not_invent_a_pattern() -> None:
    uneven = TINY.replace(layers=(TINY.layers[0], *spec.repeat(2, GPT2.layers[0])))
    with pytest.raises(SpecError, match=r"^num_layers: the stack has no single pattern to repeat; set layers\[i\]"):
        spec.assign(uneven, ["num_layers=6"])
    assert spec.assign(uneven, ["num_layers=2"]).layers == uneven.layers[:2]


LOCAL, GLOBAL = MIXED.layers[:2]


def shared(times: int, *group: spec.Block, reinject: bool = False) -> tuple[spec.Block, ...]:
    """A group of layers whose weights all its repetitions use."""
    said = {"repeat": times, "shared": True, "reinject": reinject, "blocks": group}
    return spec.parse(TINY.dump() | {"layers": [said]}).layers  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("group", [(LOCAL,), (LOCAL, GLOBAL)])
@pytest.mark.parametrize("reinject", [False, True])
def test_num_layers_lets_shared_layers_pass_more_or_less_often(group: tuple[spec.Block, ...], reinject: bool) -> None:
    model = TINY.replace(layers=shared(3, *group, reinject=reinject))
    for times in (1, 2, 3, 5):
        layers = spec.assign(model, [f"num_layers={times * len(group)}"]).layers
        assert layers == shared(times, *group, reinject=reinject)
    if len(group) == 2:  # also within a repetition
        layers = spec.assign(model, ["num_layers=7"]).layers
        assert layers == shared(4, *group, reinject=reinject)[:7]
    longer = spec.assign(model, [f"num_layers={5 * len(group)}"])
    assert spec.differences(model, longer) == [("num_layers", 3 * len(group), 5 * len(group))]


def test_num_layers_repeats_groups_that_share_inside_them() -> None:
    layers = TINY.replace(layers=(*shared(2, LOCAL), LOCAL, LOCAL.replace(weights_of=2)))
    weights = [block.weights_of for block in spec.assign(layers, ["num_layers=7"]).layers]
    assert weights == [None, 0, None, 2, None, 4, None]
    uneven = TINY.replace(layers=(LOCAL, GLOBAL, GLOBAL.replace(weights_of=1)))
    with pytest.raises(SpecError, match=r"^num_layers: the stack has no single pattern to repeat; set layers\[i\]"):
        spec.assign(uneven, ["num_layers=4"])


def test_fields_of_a_part_are_set_after_its_kind() -> None:
    edited = spec.assign(TINY, ["layers[*].mixer=mamba", "layers[*].mixer.expand=3"])
    assert [block.mixer for block in edited.layers] == [spec.Mamba(expand=3)] * 2
    with pytest.raises(SpecError, match=r"^d_model\.x: x is inside a plain value; shorten the path"):
        spec.assign(TINY, ["d_model.x=3"])


def test_assignments_after_num_layers_change_one_layer_each() -> None:
    deeper = spec.assign(TINY, ["num_layers=4", "layers[3].weights_of=0", "layers[2].dropout=0.5"])
    assert [block.weights_of for block in deeper.layers] == [None, None, None, 0]
    assert [block.dropout for block in deeper.layers] == [0.0, 0.0, 0.5, 0.0]
    assert spec.differences(spec.assign(TINY, ["num_layers=4"]), deeper) == [
        ("layers[2].dropout", 0.0, 0.5), ("layers[3].weights_of", None, 0),
    ]  # fmt: skip
    with pytest.raises(SpecError, match="num_layers: layers is not a list of blocks"):
        spec.assign(TINY, ["layers=5", "num_layers=3"])


def test_several_copies_differ_where_one_does() -> None:
    for at in range(3):
        values = [{"a": 1, "b": [2, {"c": 3}]} for _ in range(3)]
        values[at]["b"][1]["c"] = 4  # type: ignore[index]
        expected = tuple(4 if index == at else 3 for index in range(3))
        assert [*changes_of(values)] == [("b[1].c", expected)]
    assert not [*changes_of([{"a": 1}] * 3)]


def test_layers_that_change_alike_are_one_difference() -> None:
    """All, every second, a run of them, or any; a longer stack is compared with the shorter one's pattern."""
    base = spec.assign(TINY, ["num_layers=6"])
    for named in ("*", "::2", "1::2", ":3", "2:", "1:3", "4", "0,1,4", "::5"):
        changed = spec.assign(base, [f"layers[{named}].dropout=0.5", f"layers[{named}].feedforward.d_ff=100"])
        expected = [("dropout", 0.0, 0.5), ("feedforward.d_ff", 172, 100)]
        assert sorted(spec.differences(base, changed)) == [(f"layers[{named}].{path}", *ab) for path, *ab in expected]
    assert spec.differences(MIXED, spec.assign(MIXED, ["num_layers=8"])) == [("num_layers", 4, 8)]


def test_a_hybrid_differs_in_a_line_for_each_field() -> None:
    """It had 193, a line for every field of every layer."""
    block = TINY.layers[0]
    mamba = block.replace(mixer=spec.Mamba(), feedforward=spec.NoFeedForward())
    hybrid = TINY.replace(layers=spec.cycle(12, mamba, mamba, block))
    changes, layers = spec.differences(TINY, hybrid), "layers[0,1,3,4,6,7,9,10]"
    assert changes[:2] == [("num_layers", 2, 12), (f"{layers}.mixer.kind", "attention", "mamba")]
    assert all(path.startswith((f"{layers}.mixer.", f"{layers}.feedforward.")) for path, *_ in changes[1:])
    assert {
        (f"{layers}.mixer.num_heads", 4, "(absent)"),
        (f"{layers}.mixer.position.theta", 10_000.0, "(absent)"),
        (f"{layers}.mixer.state_size", "(absent)", 16),
        (f"{layers}.feedforward.d_ff", 172, "(absent)"),
    } < {*changes}
    assert len(changes) < 40  # the fields of both mixers


def test_models_of_two_kinds_differ_in_every_field_of_their_stacks() -> None:
    from archetype.families.registry import preset

    changes = spec.differences(preset("llama-tiny"), preset("transformer-tiny"))
    assert ("num_layers", 2, "(absent)") in changes and ("encoder.num_layers", "(absent)", 2) in changes
    assert ("layers[*].feedforward.d_ff", 172, "(absent)") in changes
    assert any(path == "decoder.layers[*].mixer.num_heads" for path, *_ in changes)
    assert all(before != after for _, before, after in changes)


def test_a_uniform_and_a_mixed_stack_are_compared_layer_by_layer() -> None:
    changed = spec.assign(TINY, ["layers[1].feedforward.d_ff=100"])
    assert spec.differences(TINY, changed) == [("layers[1].feedforward.d_ff", 172, 100)]
    assert spec.differences(changed, TINY) == [("layers[1].feedforward.d_ff", 100, 172)]


@given(decoders(), decoders())
@examples(12)
def test_specifications_differ_exactly_where_differences_say_so(a: spec.Decoder, b: spec.Decoder) -> None:
    assert spec.differences(a, a) == []
    assert bool(spec.differences(a, b)) == (a != b)
    assert {(path, repr(old), repr(new)) for path, old, new in spec.differences(a, b)} == {
        (path, repr(old), repr(new)) for path, new, old in spec.differences(b, a)
    }


@given(decoders())
@examples(12)
def test_every_field_can_be_assigned_its_own_value(drawn: spec.Decoder) -> None:
    block, embedding = drawn.layers[0], drawn.embedding.dump()
    if 0 not in drawn.stacks[0].readers:  # nothing in these layers reads the embedding's second table
        embedding.pop("per_layer", None)
    uniform = drawn.replace(layers=spec.repeat(drawn.num_layers, block), embedding=embedding, name="plain")
    written = block.dump()
    values = uniform.dump() | {"layers[*]": written} | {f"layers[0].{name}": value for name, value in written.items()}
    assignments = [f"{path}={json.dumps(value)}" for path, value in values.items()]
    assert spec.assign(uniform, assignments[::-1]) == uniform
