"""Native sparse attention: the paper's equations written out, and what each branch is by itself."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.cost import total_parameters
from archetype.errors import SpecError
from archetype.generate.step import DecodeStep
from archetype.models.causal import CausalModel
from archetype.models.cost import model_cost
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from archetype.parts.native_sparse_attention.module import NativeSparseAttention
from archetype.parts.native_sparse_attention.spec import BRANCHES
from tests.helpers.passes import forward_step
from tests.helpers.specs import SHARED, SPARSE, encoder, mixed
from tests.helpers.weights import distance, randomize

D, T = 16, 23
FORMS: dict[str, dict[str, Any]] = {
    "overlapping blocks, a map, keys of each branch (the paper)": {},
    "means of shared keys (flash-linear-attention)": SHARED,
    "wider selected blocks without positions": {
        "position": None, "num_kv_heads": None, "compression": {"block": 3, "stride": 1, "hidden": 5},
        "selection": {"block": 2, "top_blocks": 4, "first_blocks": 0},
    },
}  # fmt: skip


def mixer(dtype: torch.dtype = torch.float64, **changes: Any) -> NativeSparseAttention:
    part = spec.NativeSparseAttention.parse(SPARSE | changes)
    return randomize(NativeSparseAttention(part, Place(D))).to(dtype).requires_grad_(False).eval()


def inputs(rows: int = 2) -> Tensor:
    return torch.randn(rows, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def rotated(x: Tensor, part: spec.NativeSparseAttention) -> Tensor:
    """Vectors (T, H, P), whose features i and i + P / 2 are a complex number, turned by t theta^(-2 i / P)."""
    if part.position is None:
        return x
    half = x.shape[-1] // 2
    angles = torch.arange(len(x))[:, None] * part.position.theta ** -(torch.arange(half) / half)  # in float32
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.complex(angles.cos(), angles.sin())[:, None]
    return torch.cat((turned.real, turned.imag), -1)


def compressed(mixer: NativeSparseAttention, name: str, x: Tensor, t: int) -> list[Tensor]:
    """Equation 7: what the blocks of x, (T, P), become that end up to position t."""
    length, step, vectors = mixer.spec.compression.block, mixer.spec.compression.step, []
    weights = dict(mixer.compress[name].named_parameters())
    for i in range((t + 1 - length) // step + 1):
        block = x[i * step : i * step + length]
        if not weights:
            vectors.append(block.mean(0))
            continue
        hidden = weights["up.weight"] @ (block + weights["positions"]).flatten()
        vectors.append(weights["down.weight"] @ nn.functional.gelu(hidden))
    return vectors


def by_definition(mixer: NativeSparseAttention, x: Tensor) -> Tensor:
    """Equations 5 to 12 for one sequence (T, D), one token and one head after the other."""
    part = mixer.spec
    heads, keys, scale = part.num_heads, part.kv_heads, part.head_dim**-0.5
    length, step, size = part.compression.block, part.compression.step, part.selection.block
    q = rotated((x @ mixer.q.weight.T).unflatten(-1, (heads, -1)), part)
    k = {b: rotated((x @ each.weight.T).unflatten(-1, (keys, -1)), part) for b, each in mixer.k.items()}
    v = {b: (x @ each.weight.T).unflatten(-1, (keys, -1)) for b, each in mixer.v.items()}
    k, v = ({"compressed": own["selected"], "window": own["selected"]} | own for own in (k, v))
    gates = torch.sigmoid(x @ mixer.gate.weight.T).unflatten(-1, (heads, 3))
    outputs = x.new_zeros(len(x), heads, part.value_width)
    for t in range(len(x)):
        for group in range(keys):
            blocks = [torch.stack(vectors) for name, of in (("k", k), ("v", v))
                      if (vectors := compressed(mixer, name, of["compressed"][:, group], t))]  # fmt: skip
            members = range(group * heads // keys, (group + 1) * heads // keys)
            p = {h: (scale * blocks[0] @ q[t, h]).softmax(0) if blocks else x.new_zeros(0) for h in members}
            importance = {}
            for j in range(1, t // size + 2):  # equation 9, in which blocks count from 1
                terms = [size // step * j - m - n for m in range(size // step) for n in range(length // step)]
                importance[j - 1] = float(sum(p[h][i - 1] for h in members for i in terms if 1 <= i <= len(p[h])))
            own = t // size
            always = {j for j in importance if j < part.selection.first_blocks or own - j < part.selection.local_blocks}
            ranked = sorted(importance, key=lambda j: (j not in always, -importance[j], j))[: part.selection.top_blocks]
            chosen = [s for j in sorted(ranked) for s in range(j * size, min((j + 1) * size, t + 1))]
            window = [*range(max(0, t + 1 - part.window), t + 1)]
            for h in members:
                if blocks:
                    outputs[t, h] += gates[t, h, 0] * (p[h] @ blocks[1])
                for gate, branch, read in ((1, "selected", chosen), (2, "window", window)):
                    weights = (scale * k[branch][read, group] @ q[t, h]).softmax(0)
                    outputs[t, h] += gates[t, h, gate] * (weights @ v[branch][read, group])
    return outputs.flatten(1) @ mixer.o.weight.T


@pytest.mark.parametrize("form", FORMS)
def test_each_token_is_that_of_the_definition(form: str) -> None:
    ours, x = mixer(**FORMS[form]), inputs(1)
    y = ours(x, ForwardContext.of(x))[0]
    assert distance(y, by_definition(ours, x[0])) < 1e-9
    other = mixer(**FORMS[form] | {"selection": {**ours.spec.selection.dump(), "first_blocks": 0, "local_blocks": 3}})
    assert distance(y, by_definition(other, x[0])) > 1e-3  # control: other blocks are always selected


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_alone_is_attention(branch: str) -> None:
    """Of all blocks, of blocks of one position, and of a window."""
    index = BRANCHES.index(branch)
    everything = {"compression": {"block": 1}, "selection": {"block": 2, "top_blocks": 12}}
    ours, x = mixer(**everything, num_kv_heads=2), inputs()

    def alone(module: nn.Module, name: str, value: Tensor) -> Tensor:
        return torch.eye(3, dtype=value.dtype)[index].expand_as(value) if name == "gates" else value

    def result(ours: NativeSparseAttention) -> Tensor:
        y: Tensor = ours(x, ForwardContext.of(x, observer=alone))
        return y

    pattern = {"kind": "window", "size": ours.spec.window} if branch == "window" else "full"
    sizes = {name: getattr(ours.spec, name) for name in ("num_heads", "num_kv_heads", "head_dim", "v_head_dim")}
    part = spec.Attention.parse({"kind": "attention", **sizes, "position": "rotary", "pattern": pattern})
    plain = Attention(part, Place(D)).double().eval()
    own = {"q": ours.q, "k": ours.k[branch], "v": ours.v[branch], "o": ours.o}
    plain.load_state_dict({f"{name}.weight": each.weight for name, each in own.items()})
    expected = plain(x, ForwardContext.of(x))
    assert distance(result(ours), expected) < 1e-12
    fewer = {"compression": {"block": 2}, "selection": {"block": 2, "top_blocks": 3}, "window": 3}
    other = mixer(**fewer, num_kv_heads=2)
    other.load_state_dict(ours.state_dict())
    assert distance(result(other), expected) > 1e-3  # control


def model(**changes: Any) -> CausalModel:
    built = archetype.build(mixed(**SPARSE | changes))
    assert isinstance(built, CausalModel)
    return randomize(built).requires_grad_(False).eval()


def tokens(rows: int = 2) -> Tensor:
    return torch.randint(31, (rows, T), generator=torch.Generator().manual_seed(T))


@pytest.mark.parametrize("form", FORMS)
def test_a_text_in_pieces_is_the_whole_text(form: str) -> None:
    built, texts = model(**FORMS[form]), tokens()
    whole = built(texts).logits
    for cuts, capacity in (([5, 6, 13], T), ([*range(1, T)], T + 9)):
        state, pieces = built.new_state(len(texts), capacity), []
        for start, end in pairwise([0, *cuts, T]):
            piece, state = forward_step(built, texts[:, start:end], state.narrow(end))
            pieces.append(piece)
        assert distance(torch.cat(pieces, 1), whole) < 1e-5
    state = built.new_state(2, T)
    _, state = forward_step(built, texts[:, :18], state)
    step = DecodeStep(built, state)
    for position in range(18, T):
        assert distance(step(texts[:, position : position + 1]), whole[:, position]) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_the_cost_is_that_of_the_module(form: str) -> None:
    built = model(**FORMS[form])
    assert total_parameters(built.spec) == sum(parameter.numel() for parameter in built.parameters())
    for length in (1, 4, 5, 6, T):
        state = built.new_state(1, length)
        assert model_cost(built.spec).state(length)[0] == sum(
            x.numel() for layer in state.layers for _, _, x in layer.tensors()
        )


def test_the_state_grows_by_keys_and_by_one_compressed_key_for_each_stride() -> None:
    """Each position adds its key and value to the selected branch alone, once the window is full."""
    vectors = 2 * 2 * (6 + 5)  # of a position in two layers: of two key heads, keys and values
    states = [model_cost(mixed(**SPARSE)).state(length)[0] for length in range(8, 13)]
    assert [after - before for before, after in pairwise(states)] == [vectors, 2 * vectors, vectors, 2 * vectors]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads: 3 does not divide num_heads 4; use a divisor"),
        ({"compression": {"block": 4, "stride": 3}},
         "compression.stride: 3 does not divide the block of 4 positions; use a divisor"),
        ({"selection": {"block": 3, "top_blocks": 3}},
         "selection.block: 3 is not a multiple of 2, the stride of compressed blocks; use a multiple"),
        ({"selection": {"block": 4, "top_blocks": 2}},
         "selection.top_blocks: 2 is less than the 3 blocks that are always selected; use at least 3"),
        ({"head_dim": 5}, "head_dim: 5 features cannot be paired for rotary positions; use an even head_dim"),
        ({"position": {"kind": "rotary", "dim": 8}}, "position.dim: 8 is more than head_dim 6; use at most 6"),
        ({"position": {"kind": "rotary", "scaling": {"kind": "dynamic", "factor": 2.0, "original_context_length": 8}}},
         "position.scaling: stored compressed keys cannot be rotated again when the sequence grows; "
         "use another scaling"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        mixed(**SPARSE | changes)
    assert str(refused.value).endswith(message)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(SpecError, match="compressed blocks cover only earlier positions; use a decoder"):
        encoder(layers=[{"wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}}, "mixer": SPARSE}])
