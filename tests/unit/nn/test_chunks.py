"""Mixers that read in chunks: against their recurrences position by position, and against transformers."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BailingHybridConfig, KimiLinearConfig, Lfm2Config, Mamba2Config, Qwen3NextConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridDeltaAttention
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from archetype import spec
from archetype.nn.chunks import linear_chunk, read_chunks, removal_chunk
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.gated_delta_net.module import GatedDeltaNet
from archetype.parts.mamba2.module import Mamba2
from archetype.parts.short_convolution.module import ShortConvolution
from tests.helpers.weights import distance, randomize

D, EXACT = 12, 1e-11


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(length: int, heads: int, key_heads: int, delta: bool, rows: bool = False) -> list[Tensor]:
    """The memory before, queries, keys, values, logarithms of decays (of rows or heads), and rates if there are any."""
    q, k = (random(2, length, key_heads, 3, seed=seed) for seed in (1, 2))
    v, memory = random(2, length, heads, 5, seed=3), random(2, heads, 3, 5, seed=4)
    a, b = -random(2, length, heads, *(3,) * rows, seed=5).square(), random(2, length, heads, seed=6).sigmoid()
    k = k / k.norm(dim=-1, keepdim=True)
    return [memory, q, k, v, a, *([b] if delta else [])]


def defined(memory: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor | None = None) -> list[Tensor]:
    """The recurrence as it is written."""
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    outputs = []
    for t in range(v.shape[1]):
        memory = (a[:, t, :, None] if a.dim() == 3 else a[:, t]).exp()[..., None] * memory
        written = v[:, t]
        if b is not None:
            written = b[:, t, :, None] * (written - torch.einsum("bhpq,bhp->bhq", memory, k[:, t]))
        memory = memory + k[:, t, :, :, None] * written[:, :, None]
        outputs.append(torch.einsum("bhpq,bhp->bhq", memory, q[:, t]))
    return [torch.stack(outputs, 1), memory]


def gradients(of: Callable[..., Any], tensors: list[Tensor]) -> tuple[Tensor, ...]:
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    y, memory = of(*tensors)
    weighed = (y * random(*y.shape, seed=90)).sum() + (memory * random(*memory.shape, seed=91)).sum()
    return torch.autograd.grad(weighed, tensors)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_chunks_are_the_recurrence_and_so_are_their_gradients(delta: bool, rows: bool) -> None:
    for length in (1, 2, 9):
        for size in (1, 4, 64):
            for heads, key_heads in ((4, 4), (4, 2), (3, 1)):
                tensors = inputs(length, heads, key_heads, delta, rows)

                def chunked(memory: Tensor, *rest: Tensor, size: int = size) -> Any:
                    return read_chunks(linear_chunk, size, (memory,), *rest)

                for ours, theirs in zip(chunked(*tensors), defined(*tensors), strict=True):
                    assert distance(ours, theirs) < EXACT
                for ours, theirs in zip(gradients(chunked, tensors), gradients(defined, tensors), strict=True):
                    assert distance(ours, theirs) < EXACT


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("delta", [False, True])
@given(scale=st.floats(-2, 4).map(lambda power: 10**power), size=st.integers(1, 33), seed=st.integers(0, 99))
@settings(max_examples=12)
def test_strong_decays_of_some_steps_do_not_round_the_others(
    delta: bool, rows: bool, scale: float, size: int, seed: int
) -> None:
    """In float32, beside the recurrence in float64: sums of logarithms are no differences of larger ones."""
    tensors = inputs(33, 2, 2, delta, rows)
    strong = random(*tensors[4].shape, seed=seed) > 0.5
    tensors[4] = torch.where(strong, tensors[4] * scale, tensors[4] * 1e-2)
    single = [tensor.float() for tensor in tensors]
    ours = read_chunks(linear_chunk, size, (single[0],), *single[1:])
    for result, exact in zip(ours, defined(*(tensor.double() for tensor in single)), strict=True):
        assert distance(result, exact) < 1e-5


def test_equal_decays_of_all_rows_are_a_decay_of_the_head() -> None:
    for delta in (False, True):
        tensors = inputs(20, 4, 2, delta)
        rows = [*tensors[:4], tensors[4][..., None].expand(2, 20, 4, 3), *tensors[5:]]
        ours, theirs = (read_chunks(linear_chunk, 8, (memory,), *rest) for memory, *rest in (tensors, rows))
        for one, other in zip(ours, theirs, strict=True):
            assert distance(one, other) < 1e-12


def test_a_removal_by_the_key_that_writes_is_the_delta_rule() -> None:
    """And its gradients, in chunks and step by step; another rate of removal shows."""
    memory, q, k, v, a, b = inputs(20, 2, 2, delta=True, rows=True)
    for size in (1, 8, 64):

        def removed(memory: Tensor, k: Tensor, v: Tensor, b: Tensor, rate: float = 1.0, size: int = size) -> Any:
            rates = b[..., None]
            return read_chunks(removal_chunk, size, (memory,), q, k, rates * v, a, k, -rate * rates * k)

        def plain(memory: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Any:
            return defined(memory, q, k, v, a, b)

        tensors = [memory, k, v, b]
        for ours, theirs in zip(removed(*tensors), plain(*tensors), strict=True):
            assert distance(ours, theirs) < EXACT
        for ours, theirs in zip(gradients(removed, tensors), gradients(plain, tensors), strict=True):
            assert distance(ours, theirs) < EXACT
        assert distance(removed(*tensors, rate=0.9)[0], plain(*tensors)[0]) > 1e-3


def test_neither_instant_nor_endless_decay_gives_anything_but_numbers() -> None:
    for scale in (0.0, 1e4, 1e30):
        for delta, rows in product((False, True), repeat=2):
            tensors = [tensor.float() for tensor in inputs(20, 2, 2, delta, rows)]
            tensors[4] = tensors[4] * scale
            for result in read_chunks(linear_chunk, 8, (tensors[0],), *tensors[1:]):
                assert result.isfinite().all()


# the mixers

MIXERS: dict[str, spec.Mixer] = {
    "mamba2": spec.Mamba2(num_heads=6, head_dim=4, state_size=5, num_groups=2, chunk_size=8),
    "mamba2 of biases": spec.Mamba2(num_heads=3, head_dim=8, state_size=5, bias=True, conv_bias=False, conv_kernel=1),
    "mamba2 of limited steps": spec.Mamba2(
        num_heads=4, head_dim=6, state_size=5, chunk_size=8, dt_limit_min=0.6, dt_limit_max=0.8
    ),
    "delta net": spec.GatedDeltaNet(num_heads=4, num_key_heads=2, head_dim=6, v_head_dim=5, chunk_size=8),
    "delta net of equal heads": spec.GatedDeltaNet(num_heads=2, head_dim=4, v_head_dim=4, conv_kernel=2),
    "kimi delta attention": spec.GatedDeltaNet(
        num_heads=2, head_dim=6, v_head_dim=6, chunk_size=8, decay="channel", decay_rank=6, gate="sigmoid", gate_rank=6
    ),
    "bounded delta attention": spec.GatedDeltaNet(
        num_heads=2, head_dim=6, v_head_dim=6, chunk_size=8, decay="channel", decay_bound=-5.0, gate="sigmoid"
    ),
    "short convolution": spec.ShortConvolution(conv_kernel=4, bias=True),
}
MODULES: dict[str, Any] = {"mamba2": Mamba2, "gated_delta_net": GatedDeltaNet, "short_convolution": ShortConvolution}


def build(name: str) -> nn.Module:
    part: nn.Module = MODULES[MIXERS[name].kind](MIXERS[name], Place(D))
    return randomize(part).double()


def their_mamba2(ours: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    mixer = ours.spec
    config = Mamba2Config(
        hidden_size=D, num_heads=mixer.num_heads, head_dim=mixer.head_dim, state_size=mixer.state_size, expand=2,
        n_groups=mixer.num_groups, conv_kernel=mixer.conv_kernel, chunk_size=mixer.chunk_size, use_bias=mixer.bias,
        use_conv_bias=mixer.conv_bias, num_hidden_layers=1,
        time_step_limit=(mixer.dt_limit_min, mixer.dt_limit_max or float("inf")),
    )  # fmt: skip
    return Mamba2Mixer(config, 0), {name.replace("conv.", "conv1d."): x for name, x in ours.state_dict().items()}


def their_delta_net(ours: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Of each key head its query, its key, its values and their gates lie together there."""
    mixer, tensors = ours.spec, ours.state_dict()
    config = Qwen3NextConfig(
        hidden_size=D, linear_num_value_heads=mixer.num_heads, linear_num_key_heads=mixer.key_heads,
        linear_key_head_dim=mixer.head_dim, linear_value_head_dim=mixer.v_head_dim, rms_norm_eps=mixer.eps,
        linear_conv_kernel_dim=mixer.conv_kernel, layer_types=["linear_attention"], num_hidden_layers=1,
    )  # fmt: skip

    def joined(*names: str) -> Tensor:
        parts = [tensors.pop(f"{name}.weight").unflatten(0, (mixer.key_heads, -1)) for name in names]
        return torch.cat(parts, dim=1).flatten(0, 1)

    joint = {"in_proj_qkvz.weight": joined("q", "k", "v", "gate"), "in_proj_ba.weight": joined("b", "a")}
    names = {"conv.weight": "conv1d.weight", "o.weight": "out_proj.weight"}
    return Qwen3NextGatedDeltaNet(config, 0), joint | {names.get(name, name): x for name, x in tensors.items()}


def their_delta_attention(ours: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    mixer, tensors = ours.spec, ours.state_dict()
    names = {"o": "o_proj", "norm": "o_norm", "conv": "conv1d", **{name: f"{name}_proj" for name in "qkvb"}}
    names |= {"gate_down": "g_a_proj", "gate_up": "g_b_proj", "gate": "g_proj"}
    names |= {"a_down": "forget_gate.f_a_proj", "a_up": "forget_gate.f_b_proj", "a": "forget_gate.f_proj"}
    gate = {f"forget_gate.{name}": tensors.pop(name) for name in ("A_log", "dt_bias")}
    tensors = {f"{names[name.removesuffix('.weight')]}.weight": x for name, x in tensors.items()} | gate
    common: dict[str, Any] = {"hidden_size": D, "num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    if mixer.decay_bound is not None:
        sizes = {"head_dim": mixer.head_dim, "num_attention_heads": mixer.num_heads}
        config = BailingHybridConfig(**common, **sizes, rms_norm_eps=mixer.eps, kda_lower_bound=mixer.decay_bound)
        return BailingHybridDeltaAttention(config, 0), tensors
    tensors["forget_gate.A_log"] = tensors["forget_gate.A_log"].view(1, 1, -1, 1)
    sizes = {"linear_head_dim": mixer.head_dim, "linear_num_heads": mixer.num_heads}
    return KimiLinearDeltaAttention(KimiLinearConfig(**common, **sizes, rms_norm_eps=mixer.eps), 0), tensors


def their_short_convolution(ours: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = Lfm2Config(
        hidden_size=D, conv_L_cache=ours.conv.kernel_size[0], conv_bias=True, layer_types=["conv"], num_hidden_layers=1
    )
    return Lfm2ShortConv(config, 0), ours.state_dict()


THEIRS = {
    "mamba2": their_mamba2, "gated_delta_net": their_delta_net, "short_convolution": their_short_convolution,
}  # fmt: skip


@pytest.mark.parametrize("name", MIXERS)
def test_the_same_as_transformers(name: str) -> None:
    part = build(name).float()
    theirs, tensors = (their_delta_attention if "delta attention" in name else THEIRS[MIXERS[name].kind])(part)
    theirs.load_state_dict(tensors, strict=True)
    x = random(2, 23, D).float()
    with torch.no_grad():
        assert distance(part(x, ForwardContext.of(x)), theirs.eval()(x)) < 1e-5


@pytest.mark.parametrize("limit", [{"dt_limit_min": 0.0}, {"dt_limit_max": None}])
def test_each_limit_of_steps_counts(limit: dict[str, Any]) -> None:
    """The control: without one of the limits the same weights give something else."""
    part = build("mamba2 of limited steps").float()
    other = Mamba2(MIXERS["mamba2 of limited steps"].replace(**limit), Place(D))
    other.load_state_dict(part.state_dict())
    x = random(2, 23, D).float()
    assert distance(part(x, ForwardContext.of(x)), other(x, ForwardContext.of(x))) > 1e-2


@pytest.mark.parametrize("change", [{"gate": "silu"}, {"decay_bound": None}, {"decay_bound": -6.0}])
def test_gate_and_bound_of_delta_attention_count(change: dict[str, Any]) -> None:
    part = build("bounded delta attention")
    other = GatedDeltaNet(MIXERS["bounded delta attention"].replace(**change), Place(D)).double()
    other.load_state_dict(part.state_dict())
    x = random(2, 23, D)
    assert distance(part(x, ForwardContext.of(x)), other(x, ForwardContext.of(x))) > 1e-3


@pytest.mark.parametrize("name", MIXERS)
def test_in_pieces_as_at_once_and_padding_changes_nothing(name: str) -> None:
    part, x = build(name), random(2, 17, D)
    whole = part(x, ForwardContext.of(x))
    for pieces in ([17], [1] * 17, [4, 13], [9, 1, 7]):
        state, outputs, read = part.new_state(2, 17, torch.float64, x.device), [], 0
        for piece in x.split(pieces, dim=1):
            outputs.append(part(piece, ForwardContext.of(piece, torch.full((2,), read)), state))
            read += piece.shape[1]
        assert distance(torch.cat(outputs, 1), whole) < EXACT
    state, lengths = part.new_state(2, 17, torch.float64, x.device), torch.tensor([9, 4])
    part(x[:, :9], ForwardContext.of(x[:, :9], num_tokens=lengths), state)
    after = torch.stack([x[0, 9:14], x[1, 4:9]])
    y = part(after, ForwardContext.of(after, lengths), state)
    assert distance(y, torch.stack([whole[0, 9:14], whole[1, 4:9]])) < EXACT
