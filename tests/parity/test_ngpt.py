"""nGPT's blocks, which step towards the normed output of a sublayer, and the model on a loop, against Dory."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.dory.configuration_dory import DoryConfig
from transformers.models.dory.modeling_dory import DoryDecoderLayer, DoryL2Norm

from archetype import spec
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from archetype.models.block.module import InterpolatedBlock, build_block
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_norm
from tests.helpers.examples import every
from tests.helpers.published import WRONG, swap
from tests.helpers.specs import block, decoder
from tests.helpers.weights import distance, randomize
from tests.parity.test_inferred_families import SIZES, as_it_is, check

D, T = 16, 7
X = 3 * torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(2))
RATES = {"rate": 0.3, "stored_rate": 0.02}


class Sine(nn.Module):
    """A sublayer of which any difference in its input shows."""

    def forward(self, x: Tensor, *args: Any, **names: Any) -> Tensor:
        return (x * torch.arange(D)).sin()


class WithWeights(Sine):
    def forward(self, x: Tensor, *args: Any, **names: Any) -> Any:
        return super().forward(x), None


@torch.no_grad()
def test_a_block_steps_as_dory_does() -> None:
    config = DoryConfig(hidden_size=D, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
                        num_key_value_heads=2, ngpt_alpha_init=0.3, initializer_range=0.02, n_input_layers=1,
                        n_output_layers=1)  # fmt: skip
    theirs = randomize(DoryDecoderLayer(config, 0))
    theirs.self_attn, theirs.mlp = WithWeights(), Sine()
    described = decoder(block(wiring={"kind": "interpolated", "norm": {"kind": "l2"}, **RATES}))
    ours = build_block(described.layers[0], Place(D)).eval()
    assert isinstance(ours, InterpolatedBlock)
    ours.mixer, ours.feedforward = Sine(), Sine()
    ours.mixer_rate.copy_(theirs.lambda_1)
    ours.feedforward_rate.copy_(theirs.lambda_2)
    context = ForwardContext.of(X)
    assert distance(ours(X, context), theirs(X)) < 1e-6
    ours.feedforward_rate[3] += 1.0
    assert distance(ours(X, context), theirs(X)) > 1e-3


def test_the_l2_norm_is_dorys_and_gives_vectors_of_length_one() -> None:
    theirs, ours = DoryL2Norm(), build_norm(spec.L2Norm(), D)
    assert distance(ours(X), theirs(X)) < 1e-6
    assert (ours(X).norm(dim=-1) - 1).abs().max() < 1e-5
    assert distance(build_norm(spec.L2Norm(eps=1.0), D)(X), theirs(X)) > 1e-3


def test_rates_begin_where_the_wiring_says() -> None:
    model = build(decoder(block(wiring={"kind": "interpolated", **RATES}), final_norm="l2"))
    layer = model.blocks[0]
    assert torch.equal(layer.mixer_rate, torch.full((D,), 0.02))
    assert layer.rate_scale * float(layer.mixer_rate[0].detach()) == pytest.approx(0.3)
    absent = build(decoder(block(wiring="interpolated"), final_norm="l2")).blocks[0]
    assert torch.equal(absent.mixer_rate, torch.full((D,), D**-0.5))


@torch.no_grad()
@pytest.mark.parametrize("rate", [1.0, 0.0])
def test_the_ends_of_a_step_are_the_output_and_the_input(rate: float) -> None:
    """Without norms, a rate of 1 is the wiring without residuals, and a rate of 0 passes the stream on."""
    ends = {"final_norm": "none", "head": {"tied": True}}
    layers = [block(wiring={"kind": "interpolated", "norm": "none"})] * 2
    stepping = randomize(build(decoder(*layers, **ends))).double()
    for name, parameter in stepping.named_parameters():
        if name.endswith("_rate"):
            parameter.fill_(rate / stepping.blocks[0].rate_scale)
    plain = build(decoder(*2 * [block(wiring="plain")], **ends)).eval().double()
    plain.load_state_dict({name: x for name, x in stepping.state_dict().items() if not name.endswith("_rate")})
    context = plain.context(TOKENS)
    embedded = plain.embedding(TOKENS, context)
    expected = plain(TOKENS).logits if rate else plain.lm_head(embedded, plain.embedding.token.weight)
    assert distance(stepping(TOKENS).logits, expected) < 1e-6
    stepping.blocks[1].mixer_rate.add_(0.1)
    assert distance(stepping(TOKENS).logits, expected) > 1e-3


# as it is published: attention and networks count as layers of their own
DORY: dict[str, Any] = SIZES | {
    "architectures": ["DoryForCausalLM"], "model_type": "dory", "head_dim": 8, "sliding_window": 6,
    "num_hidden_layers": 8, "n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2, "n_recurrent_loops": 2,
    "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2, "initializer_range": 0.3,
    "ngpt_alpha_init": 0.05, "recurrent_kv_cache_mode": "per_loop", "tie_word_embeddings": False,
}  # fmt: skip

SHORT: dict[str, Any] = {
    "num_hidden_layers": 4, "n_input_layers": 0, "n_recurrent_layers": None, "n_recurrent_loops": 3,
    "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"], "tie_word_embeddings": True,
}  # fmt: skip


def numbered_apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as NVIDIA publishes them, where an attention or a network is a layer."""

    def name(match: re.Match[str]) -> str:
        parts = {"self_attn": "mixer", "mlp": "mixer", "lambda_1": "attn_alpha", "lambda_2": "mlp_alpha"}
        second, ours = match[2] in ("mlp", "lambda_2"), parts[match[2]]
        return f"layers.{2 * int(match[1]) + second}.{ours}"

    return {re.sub(r"layers\.(\d+)\.(self_attn|mlp|lambda_\d)", name, key): x for key, x in tensors.items()}


@torch.no_grad()
@pytest.mark.parametrize("changes", every(2, [{}, SHORT]))
def test_dory_passes_its_middle_layers_several_times(changes: dict[str, Any], tmp_path: Path) -> None:
    """Each pass starts from the sum of what the last one and the layers before the loop left, and has its own keys."""
    mistake = swap("blocks.0.mixer.query_gain.weight", "blocks.0.mixer.gate_gain.weight")
    lm = check(DORY | changes, mistake, tmp_path, as_it_is if changes else numbered_apart)
    owners = [block.weights_of for block in lm.spec.layers]
    assert owners == ([None, 0, 0, None] if changes else [None, None, None, 1, 2, None])
    assert [block.reinject for block in lm.spec.layers] == [
        "unit" if first else False for first in ([0, 1, 1, 0] if changes else [0, 0, 0, 1, 0, 0])
    ]
    logits = lm.model(TOKENS).logits
    for name in ("feedforward.up_gain.weight", "feedforward_rate"):
        swap(f"blocks.0.{name}", f"blocks.{len(owners) - 1}.{name}")(lm.model)
        assert distance(lm.model(TOKENS).logits, logits) > WRONG


def test_passes_that_read_the_keys_of_the_last_are_refused() -> None:
    shapes = {"model.embed_tokens.weight": (61, 32), "model.layers.0.lambda_1": (32,)}
    values = {"num_hidden_layers": 2, "layer_types": ["full_attention", "mlp"], "n_input_layers": 0}
    loop = {"n_recurrent_layers": 2, "n_output_layers": 0, "recurrent_kv_cache_mode": "last_loop"}
    with pytest.raises(CheckpointError, match="recurrent_kv_cache_mode: 'last_loop' is not supported"):
        read_unknown(DORY | values | loop, shapes)
    with pytest.raises(CheckpointError, match="n_input_layers: and n_output_layers leave no layers of 1 for the loop"):
        read_unknown(DORY | values | loop | {"n_input_layers": 2}, shapes)
    with pytest.raises(CheckpointError, match="layer_types: needs attention and network in turn"):
        read_unknown(DORY | {"layer_types": ["mlp", "full_attention"] * 4}, shapes)
