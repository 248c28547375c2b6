"""Tables that are read by token id compute what transformers does for Gemma 3n and DeepSeek-V4, every tensor random."""

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV4Config, Gemma3nTextConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter, DeepseekV4SparseMoeBlock
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextModel

from archetype import spec
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.experts.module import MixtureOfExperts
from tests.helpers.weights import distance, randomize

EXACT = 1e-5
D, T, LAYERS, OWN, VOCABULARY = 32, 9, 2, 6, 40
TOKENS = torch.randint(VOCABULARY, (2, T), generator=torch.Generator().manual_seed(0))
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(1))


def gemma() -> Gemma3nTextModel:
    """A Gemma 3n of two layers."""
    config = Gemma3nTextConfig(
        vocab_size=VOCABULARY, vocab_size_per_layer_input=VOCABULARY, hidden_size=D, hidden_size_per_layer_input=OWN,
        num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=24,
        num_kv_shared_layers=0, laurel_rank=4, layer_types=["full_attention"] * LAYERS,
        activation_sparsity_pattern=[0.0] * LAYERS, pad_token_id=None,
    )  # fmt: skip
    model = Gemma3nTextModel(config)
    scales = {name: buffer.clone() for name, buffer in model.named_buffers()}  # numbers of the formula, no weights
    randomize(model)
    for name, buffer in scales.items():
        model.get_buffer(name).copy_(buffer)
    return model


def reading() -> Decoder:
    """A decoder whose layers are followed by what Gemma 3n adds to each."""
    norm = spec.RMSNorm(eps=1e-6)
    layer = spec.Block(wiring=spec.PreNorm(norm=norm), mixer=spec.Attention(num_heads=2))
    reader = spec.Block(
        wiring=spec.OutputNorm(norm=norm), mixer=spec.NoMixer(), feedforward=spec.PerLayerInput(features=OWN)
    )
    embedding = spec.Embedding(scale=D**0.5, per_layer=spec.PerLayerEmbedding(features=OWN, norm=norm))
    model = build(spec.Decoder(
        vocab_size=VOCABULARY, context_length=T, d_model=D, embedding=embedding, layers=(layer, reader) * LAYERS,
        final_norm=norm,
    ))  # fmt: skip
    assert isinstance(model, Decoder)
    return model.eval()


def with_weights_of(theirs: Gemma3nTextModel) -> Decoder:
    """Ours, with their tables, projections and norms."""
    ours = reading()
    tables = {
        "embedding.token": theirs.embed_tokens,
        "embedding.per_layer.token": theirs.embed_tokens_per_layer,
        "embedding.per_layer.projection": theirs.per_layer_model_projection,
        "embedding.per_layer.norm": theirs.per_layer_projection_norm,
    }
    for index, layer in enumerate(theirs.layers):
        place = f"blocks.{2 * index + 1}."
        tables |= {
            f"{place}feedforward.gate": layer.per_layer_input_gate,
            f"{place}feedforward.down": layer.per_layer_projection,
            f"{place}feedforward_norm": layer.post_per_layer_input_norm,
        }
    with torch.no_grad():
        for path, module in tables.items():
            ours.get_parameter(f"{path}.weight").copy_(module.weight)
    return ours


@torch.no_grad()
def test_gemma_3n_gives_each_layer_the_same_vectors() -> None:
    theirs = gemma()
    ours, context = with_weights_of(theirs), ForwardContext.of(TOKENS)
    x = ours.embedding(TOKENS, context)
    embedded = theirs.embed_tokens(TOKENS)
    assert distance(x, embedded) < EXACT
    expected = theirs.project_per_layer_inputs(embedded, theirs.get_per_layer_inputs(TOKENS))
    assert list(context.layer_inputs) == [1, 3]
    for index, own in enumerate(context.layer_inputs.values()):
        assert distance(own, expected[:, :, index]) < EXACT
        assert distance(own, expected[:, :, 1 - index]) > 1e-2  # another layer's would show


@pytest.mark.parametrize("index", range(LAYERS))
@torch.no_grad()
def test_gemma_3n_adds_the_same_to_a_layers_output(index: int) -> None:
    """The lines of its decoder layer behind AltUp's, which has several streams where ours is one."""
    theirs = gemma()
    ours, context = with_weights_of(theirs), ForwardContext.of(TOKENS)
    ours.embedding(TOKENS, context)
    context.layer = 2 * index + 1
    layer, own = theirs.layers[index], context.layer_inputs[context.layer]
    gated = torch.multiply(layer.act_fn(layer.per_layer_input_gate(X)), own)
    expected = X + layer.post_per_layer_input_norm(layer.per_layer_projection(gated))
    block = ours.blocks[context.layer]
    assert distance(block(X, context), expected) < EXACT
    ours.get_parameter(f"blocks.{context.layer}.feedforward.gate.weight").mul_(1.5)
    assert distance(block(X, context), expected) > 1e-3  # a wrong tensor would show


@torch.no_grad()
def test_deepseek_v4_sends_tokens_to_the_experts_of_their_ids() -> None:
    config = DeepseekV4Config(
        hidden_size=D, moe_intermediate_size=10, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
        num_hidden_layers=2, num_hash_layers=1, vocab_size=VOCABULARY, routed_scaling_factor=1.5, swiglu_limit=7.0,
    )  # fmt: skip
    theirs = randomize(DeepseekV4SparseMoeBlock(config, 0))
    assert isinstance(theirs.gate, DeepseekV4HashRouter)
    router = spec.HashRouter(affinity="sqrt_softplus", renormalize=True, scale=1.5)
    expert = spec.GatedMLP(d_ff=10, activation="silu", limit=7.0)
    part = spec.MixtureOfExperts(num_experts=8, experts_per_token=3, expert=expert, shared=expert, router=router)
    ours = MixtureOfExperts(part, Place(D, vocab_size=VOCABULARY)).eval()
    ours.router.init_tensor("table", ours.router.table, torch.Generator().manual_seed(2))
    theirs.gate.tid2eid.copy_(ours.router.table)
    gate, up = theirs.experts.gate_up_proj.chunk(2, dim=1)
    shared = theirs.shared_experts
    weights: dict[str, Tensor] = {
        "router.projection.weight": theirs.gate.weight, "router.table": ours.router.table.clone(),
        "experts.gate": gate, "experts.up": up, "experts.down": theirs.experts.down_proj,
    }  # fmt: skip
    weights |= {f"shared.{name}.weight": getattr(shared, f"{name}_proj").weight for name in ("gate", "up", "down")}
    ours.load_state_dict(weights)
    expected = theirs(X.clone(), TOKENS)
    assert distance(ours(X, ForwardContext.of(TOKENS)), expected) < EXACT
    assert distance(ours(X, ForwardContext.of(TOKENS.roll(1, 1))), expected) > 1e-3  # other ids have other experts
