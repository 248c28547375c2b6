"""Specifications of another size in the same proportions, of every preset."""

from fractions import Fraction
from typing import Any

import pytest

from archetype.errors import SpecError
from archetype.families.registry import preset, presets
from archetype.spec.base import Spec
from archetype.spec.edit import assign, leaves
from archetype.spec.scaling import scaled, unusual_ratios
from archetype.spec.sizes import followed
from tests.helpers.examples import every

LLAMA = preset("llama-3-8b")


def sizes(spec: Any) -> dict[str, Any]:
    return dict(leaves(spec.dump(full=True, each_layer=True)))


def shares_of_width(part: Spec, place: str = "") -> set[str]:
    """The paths of all sizes that are declared to follow the width."""
    shares = {place + name for name, follows in followed(type(part)).items() if follows.measure == "width"}
    for name in type(part).model_fields:
        inner = getattr(part, name)
        for key, item in enumerate(inner) if isinstance(inner, tuple) else [("", inner)]:
            if isinstance(item, Spec):
                shares |= shares_of_width(item, f"{place}{name}{'' if key == '' else f'[{key}]'}.")
    return shares


def test_a_small_llama_keeps_its_proportions() -> None:
    small = scaled(LLAMA, ["width=1/32", "depth=4", "vocab=8000", "context=1/8"])
    block: Any = small.layers[0]
    assert (small.d_model, small.num_layers, small.vocab_size, small.context_length) == (128, 4, 8000, 1024)
    assert (block.feedforward.d_ff, block.mixer.num_heads, block.mixer.num_kv_heads) == (448, 4, 1)
    assert scaled(LLAMA, ["width=128"]).layers[0] == block
    assert block.mixer.sizes(128).head_dim == 32  # 8 key/value heads cannot be divided by 32
    assert unusual_ratios(LLAMA, small) == []


@pytest.mark.parametrize("name", every(14, presets()))
def test_every_preset_keeps_its_proportions(name: str) -> None:
    """Half and twice as wide: all shares of the width by that factor, and as many queries for each key as before."""
    spec = preset(name)
    before, shares, count = sizes(spec), shares_of_width(spec), 0
    for text, factor in (("1/2", Fraction(1, 2)), ("2x", Fraction(2))):
        copy = scaled(spec, [f"width={text}"])
        after = sizes(copy)
        assert after.keys() == before.keys()
        for path, size in before.items():
            field = path.split(".")[-1]
            if path in shares and isinstance(size, int):
                assert after[path] == round(size * factor)
                count += 1
            elif field == "num_kv_heads" and size is not None:
                queries = path.replace("num_kv_heads", "num_heads")
                assert after[queries] * size == before[queries] * after[path]
    assert count >= 2


def test_scores_of_narrower_heads_keep_their_scale() -> None:
    spec = assign(preset("llama-tiny"), ["layers[*].mixer.scale=0.25"])  # 1 / sqrt(16), of 4 heads of 16
    mixer: Any = scaled(spec, ["width=1/4"]).layers[0].mixer
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.sizes(16).head_dim) == (2, 1, 8)
    assert mixer.scale == pytest.approx(8**-0.5)


def test_a_width_that_is_set_alone_is_warned_of() -> None:
    assert unusual_ratios(LLAMA, assign(LLAMA, ["d_model=128"]))[:2] == [
        "each of 32 heads has 4 features, where most models have 16 to 256",
        "d_ff 14336 is 112 times d_model 128, where most models have 1 to 8 times",
    ]
    assert unusual_ratios(LLAMA, assign(LLAMA, ["d_model=2048"])) == []
    latent = preset("deepseek-v3")
    narrow = unusual_ratios(latent, assign(latent, ["layers[*].mixer.qk_nope_head_dim=4"]))
    assert narrow[0] == "each of 128 heads has 4 features, where most models have 16 to 256"
    t5 = preset("t5-11b")  # whose own ratio of 64 is none of ours
    assert unusual_ratios(t5, assign(t5, ["context_length=64"])) == []


@pytest.mark.parametrize(("factor", "message"), [
    ("breadth=1/2", "--scale: 'breadth=1/2' is not one of width, depth, vocab, context with a value; write width=1/8"),
    ("width=wide", "--scale width: 'wide' is not a size or a ratio; write 1/8, 0.5, 2x or 512"),
    ("width=1/0", "--scale width: '1/0' is not a size or a ratio; write 1/8, 0.5, 2x or 512"),
    ("depth=1/1000", "--scale depth: 1/1000 of 32 leaves nothing; use a larger ratio"),
    ("width=1/3", "--scale width: layers[0].mixer: 32 heads cannot be divided into 0.333252 of their width; "
     "use a ratio such as 1/2, 1/4 or 1/8"),
])  # fmt: skip
def test_what_cannot_be_scaled(factor: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        scaled(LLAMA, [factor])
    assert str(refused.value) == message


def test_a_model_without_layers_has_no_depth() -> None:
    with pytest.raises(SpecError, match="--scale depth: the specification has no such size"):
        scaled(preset("bigram-tiny"), ["depth=2"])
