"""What is wrong with a specification is said in one line: the place, the cause, the remedy."""

import copy
from typing import Any

import pytest

from archetype import spec
from archetype.errors import SpecError

BLOCK: dict[str, Any] = {
    "wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}},
    "mixer": {"kind": "attention", "num_heads": 8},
    "feedforward": {"kind": "gated", "d_ff": 64, "activation": "silu"},
}
GOOD: dict[str, Any] = {
    "version": 1,
    "kind": "decoder",
    "vocab_size": 100,
    "context_length": 64,
    "d_model": 48,
    "layers": [copy.deepcopy(BLOCK) for _ in range(4)],
}
LAYER = ("layers", 3)
MIXER = (*LAYER, "mixer")
POSITION = (*MIXER, "position")
LLAMA3 = {
    "kind": "llama3", "factor": 8, "low_frequency_factor": 4, "high_frequency_factor": 4, "original_context_length": 64
}  # fmt: skip
YARN = {"kind": "yarn", "factor": 2, "original_context_length": 64}


def refusal(keys: tuple[str | int, ...], value: Any) -> str:
    data = copy.deepcopy(GOOD)
    branch = data
    for key in keys[:-1]:
        branch = branch.setdefault(key, {}) if isinstance(branch, dict) else branch[key]
    branch[keys[-1]] = value
    with pytest.raises(SpecError) as caught:
        spec.parse(data)
    return str(caught.value)


def test_the_good_specification_is_good() -> None:
    assert spec.parse(GOOD).num_layers == 4


UNKNOWN_KEYS = [
    (("vocab_sise",), "vocab_sise: is not a known key; did you mean vocab_size?"),
    ((*LAYER, "feed_forward"), "layers[3].feed_forward: is not a known key; did you mean feedforward?"),
    ((*MIXER, "num_kv_head"), "layers[3].mixer.num_kv_head: is not a known key; did you mean num_kv_heads?"),
    ((*LAYER, "wiring", "norm", "epsilon"),
     "layers[3].wiring.norm.epsilon: is not a known key; did you mean eps?"),
    ((*LAYER, "wiring", "shared_norm"), "layers[3].wiring.shared_norm: is not a known key; use one of kind, norm"),
    (("head", "tyed"), "head.tyed: is not a known key; did you mean tied?"),
    (("embedding", "zzz"), "embedding.zzz: is not a known key; use one of position, scale, norm, dropout"),
    ((7,), "7: is not a known key; use one of version, kind, name, vocab_size, context_length, d_model, embedding, "
     "layers, final_norm, head, initialization"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "message"), UNKNOWN_KEYS)
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_name(keys: tuple[str, ...], message: str) -> None:
    assert refusal(keys, 1) == message


IMPOSSIBLE = [
    # what does not divide, pair or fit
    ((*MIXER, "num_kv_heads"), 5, "layers[3].mixer.num_kv_heads: 5 does not divide num_heads 8; use 1, 2, 4 or 8"),
    (MIXER, {"num_heads": 1, "num_kv_heads": 2}, "layers[3].mixer.num_kv_heads: 2 does not divide num_heads 1; use 1"),
    ((*MIXER, "num_heads"), 7,
     "layers[3].mixer.num_heads: 7 does not divide d_model 48; use 4, 6, 8 or give head_dim"),
    (MIXER, {"num_heads": 16, "position": {"kind": "rotary"}},
     "layers[3].mixer.head_dim: 3 features cannot be paired for rotary positions; use an even head_dim"),
    (MIXER, {"num_heads": 8, "head_dim": 5, "position": {"kind": "rotary"}},
     "layers[3].mixer.head_dim: 5 features cannot be paired for rotary positions; use an even head_dim"),
    (POSITION, {"kind": "rotary", "dim": 8}, "layers[3].mixer.position.dim: 8 is more than head_dim 6; use at most 6"),
    (MIXER, {"num_heads": 8, "head_dim": 2, "position": {"kind": "rotary", "dim": 4}},
     "layers[3].mixer.position.dim: 4 is more than head_dim 2; use at most 2"),
    (POSITION, {"kind": "rotary", "dim": 3},
     "layers[3].mixer.position.dim: 3 features cannot be paired; use an even number"),
    (POSITION, {"kind": "rotary", "scaling": LLAMA3},
     "layers[3].mixer.position.scaling.high_frequency_factor: 4.0 is not above low_frequency_factor 4.0; "
     "use a larger one (Llama 3.1 has 4 and 1)"),
    (POSITION, {"kind": "rotary", "theta": 1.0, "scaling": YARN},
     "layers[3].mixer.position.theta: 1.0 leaves yarn no slower frequencies; use more than 1"),
    # kinds and choices
    (("kind",), "encoder", "kind: there is no kind 'encoder' of model; use decoder"),
    ((*LAYER, "wiring", "norm", "kind"), "rmsnorm",
     "layers[3].wiring.norm: there is no kind 'rmsnorm'; did you mean rms?"),
    ((*LAYER, "wiring", "norm"), {"eps": 1e-5},
     "layers[3].wiring.norm: its kind is missing; start it with kind: NAME"),
    ((*LAYER, "wiring", "norm"), "rms",
     "layers[3].wiring.norm: 'rms' is not a mapping; write it as {key: value, ...}"),
    (POSITION, {"kind": "rotary", "scaling": {"kind": "ntk", "factor": 2}},
     "layers[3].mixer.position.scaling: there is no kind 'ntk'; use one of none, linear, dynamic, yarn, llama3"),
    ((*MIXER, "kind"), "atention", "layers[3].mixer.kind: 'atention' is not a choice; did you mean attention?"),
    ((*LAYER, "feedforward", "activation"), "gelu_tan",
     "layers[3].feedforward.activation: 'gelu_tan' is not a choice; did you mean gelu_tanh?"),
    # mappings that may also be a plain value
    ((*LAYER, "feedforward", "activation"), {"kind": "swish", "beta": 0},
     "layers[3].feedforward.activation.beta: 0 is too small; use more than 0.0"),
    ((*LAYER, "feedforward", "activation"), {"kind": "swish", "bta": 1},
     "layers[3].feedforward.activation.bta: is not a known key; did you mean beta?"),
    ((*LAYER, "feedforward", "d_ff"), {"kind": "eight_thirds", "multiple": 8},
     "layers[3].feedforward.d_ff.multiple: is not a known key; did you mean multiple_of?"),
    ((*LAYER, "feedforward", "d_ff"), "big",
     "layers[3].feedforward.d_ff: 'big' is not a whole number; give a whole number"),
    ((*MIXER, "bias"), {"q": 1}, "layers[3].mixer.bias.q: 1 is neither true nor false; use true or false"),
    ((*MIXER, "bias"), {"w": True}, "layers[3].mixer.bias.w: is not a known key; use one of q, k, v, o"),
    # numbers
    (("d_model",), 0, "d_model: 0 is too small; use more than 0"),
    (("d_model",), 48.0, "d_model: 48.0 is not a whole number; give a whole number"),
    (("d_model",), "48", "d_model: '48' is not a whole number; give a whole number"),
    (("d_model",), True, "d_model: True is not a whole number; give a whole number"),
    (("d_model",), None, "d_model: None is not a whole number; give a whole number"),
    ((*MIXER, "scale"), True, "layers[3].mixer.scale: True is not a finite number; give a number"),
    ((*MIXER, "scale"), "0.5", "layers[3].mixer.scale: '0.5' is not a finite number; give a number"),
    ((*MIXER, "scale"), float("inf"), "layers[3].mixer.scale: inf is not a finite number; give a number"),
    ((*LAYER, "dropout"), 1.0, "layers[3].dropout: 1.0 is too large; use less than 1.0"),
    ((*LAYER, "dropout"), -0.5, "layers[3].dropout: -0.5 is too small; use at least 0.0"),
    (("head", "tied"), "yes", "head.tied: 'yes' is neither true nor false; use true or false"),
    (("name",), 3, "name: 3 is not text; give text"),
    # lists of layers
    (("layers",), [], "layers: is empty; give it at least one item"),
    (("layers",), {"repeat": 3}, "layers: a dict is not a list; write it as [item, ...]"),
    (("layers",), [BLOCK, 3], "layers[1]: 3 is not a mapping; write it as {key: value, ...}"),
    (("layers",), [{"repeat": 3}], "layers[0]: repeats nothing; give one of them"),
    (("layers",), [{"repeat": 0, "block": BLOCK}], "layers[0].repeat: 0 is not a count; "
     "use a whole number from 1 to 10000"),
    (("layers",), [{"repeat": 2, "block": BLOCK, "blocks": [BLOCK]}],
     "layers[0]: has both block and blocks; give one of them"),
    (("layers",), [{"repeat": 2, "blocks": []}], "layers[0].blocks: is not a list of blocks; write it as [block, ...]"),
    (("layers",), [{"repeat": 2, "blok": BLOCK}],
     "layers[0].blok: is not a known key; use repeat with block or blocks"),
    (("layers",), [{"wiring": BLOCK["wiring"], "mixer": BLOCK["mixer"]}],
     "layers[0].feedforward: is missing; give it a value"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "message"), IMPOSSIBLE)
def test_what_is_impossible_is_refused_with_place_cause_and_remedy(
    keys: tuple[str | int, ...], value: Any, message: str
) -> None:
    assert refusal(keys, value) == message


def test_an_odd_width_is_refused_for_sinusoidal_positions() -> None:
    data = GOOD | {"d_model": 9, "embedding": {"position": {"kind": "sinusoidal"}}, "layers": [
        BLOCK | {"mixer": {"num_heads": 1}},
    ]}  # fmt: skip
    with pytest.raises(SpecError) as caught:
        spec.parse(data)
    assert str(caught.value) == "d_model: 9 features cannot be paired for sinusoidal positions; use an even number"


HUGE = [
    (("d_model",), 10**9, "d_model: 1000000000 is too large; use at most 1048576"),
    (("vocab_size",), 10**9, "vocab_size: 1000000000 is too large; use at most 16777216"),
    (("context_length",), 10**10, "context_length: 10000000000 is too large; use at most 2147483648"),
    ((*MIXER, "num_heads"), 10**9, "layers[3].mixer.num_heads: 1000000000 is too large; use at most 1048576"),
    ((*MIXER, "head_dim"), 10**9, "layers[3].mixer.head_dim: 1000000000 is too large; use at most 1048576"),
    ((*LAYER, "feedforward", "d_ff"), 10**9,
     "layers[3].feedforward.d_ff: 1000000000 is too large; use at most 16777216"),
    (("layers",), [{"repeat": 10**9, "block": BLOCK}],
     "layers[0].repeat: 1000000000 is not a count; use a whole number from 1 to 10000"),
    (("layers",), [{"repeat": 10_000, "blocks": [BLOCK, BLOCK]}],
     "layers[0].repeat: the stack has more than 10000 layers; use fewer"),
    (("layers",), [{"repeat": 10_000, "block": BLOCK}, BLOCK],
     "layers[1]: the stack has more than 10000 layers; use fewer"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "message"), HUGE)
def test_a_size_beyond_any_model_is_refused(keys: tuple[str | int, ...], value: Any, message: str) -> None:
    assert refusal(keys, value) == message


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_schema_version_is_refused(version: Any) -> None:
    message = f"version: schema version {version!r} is unknown here; this Archetype reads version 1"
    assert refusal(("version",), version) == message


@pytest.mark.parametrize("data", [None, [], "llama", 3])
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(SpecError) as caught:
        spec.parse(data)
    kind = type(data).__name__
    assert str(caught.value) == f"a specification is a mapping, not {kind}; write it as key: value lines"


def test_a_changed_copy_is_checked_anew() -> None:
    with pytest.raises(SpecError, match=r"^num_kv_heads: 3 does not divide num_heads 8; use 1, 2, 4 or 8$"):
        spec.Attention(num_heads=8).changed(num_kv_heads=3)


def test_nothing_in_a_specification_can_be_set() -> None:
    with pytest.raises(ValueError, match="frozen"):
        spec.Attention(num_heads=8).num_heads = 4  # type: ignore[misc]
