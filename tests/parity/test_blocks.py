"""What a block and a stack can say, as published models use it: Falcon-H1, ALBERT, and a decoder that loops.

These are users of the frame and no families: their weights are put in place by hand.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, FalconH1Config, FalconH1ForCausalLM

from archetype import spec
from archetype.models.build import build
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance, randomize

EXACT, WRONG = 1e-5, 1e-3
D, T, VOCABULARY = 24, 20, 31
TOKENS = torch.randint(0, VOCABULARY, (2, T), generator=torch.Generator().manual_seed(0))


def drawn(theirs: nn.Module) -> nn.Module:
    """Every parameter random; buffers, such as the angles of rotary positions, as they are."""
    buffers = {name: buffer.clone() for name, buffer in theirs.named_buffers()}
    randomize(theirs)
    for name, buffer in theirs.named_buffers():
        buffer.copy_(buffers[name])
    return theirs.requires_grad_(False)


# Attention and a state space side by side (Falcon-H1). Its nine multipliers are fields here: the factor of the gate as
# a swish of another slope, that of keys in the scale of the scores.

MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "key_multiplier": 0.8, "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 1.3, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.75, 1.4], "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
}  # fmt: skip


def falcon_config(**changes: Any) -> FalconH1Config:
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": D, "intermediate_size": 36, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
        "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_n_groups": 2,
        "mamba_d_conv": 3, "mamba_chunk_size": 8, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "pad_token_id": 0,
    }  # fmt: skip
    return FalconH1Config(**(sizes | MULTIPLIERS | changes))


def falcon_spec(config: FalconH1Config) -> spec.Decoder:
    norm = spec.RMSNorm(eps=config.rms_norm_eps)
    gate, down = config.mlp_multipliers
    attention = spec.Attention(
        num_heads=config.num_attention_heads, num_kv_heads=config.num_key_value_heads, head_dim=config.head_dim,
        scale=config.key_multiplier * config.head_dim**-0.5,
        position=spec.Rotary(theta=config.rope_parameters["rope_theta"]),
    )  # fmt: skip
    mamba = spec.Mamba2(
        num_heads=config.mamba_n_heads, head_dim=config.mamba_d_head, state_size=config.mamba_d_state,
        num_groups=config.mamba_n_groups, conv_kernel=config.mamba_d_conv, chunk_size=config.mamba_chunk_size,
        eps=config.rms_norm_eps, in_scales=config.ssm_multipliers,
    )  # fmt: skip
    mixers = spec.MixersTogether(
        parts=(attention, mamba),
        scales=(config.attention_out_multiplier, config.ssm_out_multiplier),
        input_scales=(config.attention_in_multiplier, config.ssm_in_multiplier),
    )
    # silu(m x) is m times the swish of slope m
    network = spec.GatedMLP(d_ff=config.intermediate_size, activation=spec.Swish(beta=gate))
    scaled = spec.FeedForwardsTogether(parts=(network,), scales=(gate * down,))
    block = spec.Block(wiring=spec.PreNorm(norm=norm), mixer=mixers, feedforward=scaled)
    return spec.Decoder(
        vocab_size=VOCABULARY, context_length=64, d_model=D, layers=spec.repeat(config.num_hidden_layers, block),
        embedding=spec.Embedding(scale=config.embedding_multiplier), final_norm=norm,
        head=spec.LanguageModelHead(scale=config.lm_head_multiplier),
    )  # fmt: skip


def falcon_weights(theirs: FalconH1ForCausalLM) -> dict[str, Tensor]:
    """Their tensors under our names."""
    model = theirs.model
    weights = {"embedding.token.weight": model.embed_tokens.weight, "final_norm.weight": model.final_layernorm.weight,
               "lm_head.weight": theirs.lm_head.weight}  # fmt: skip
    for index, layer in enumerate(model.layers):
        place, attention, mamba = f"blocks.{index}", layer.self_attn, layer.mamba
        weights |= {
            f"{place}.mixer.parts.0.{name}.weight": getattr(attention, f"{name}_proj").weight for name in "qkvo"
        }
        weights |= {f"{place}.mixer.parts.1.{name}": getattr(mamba, name) for name in ("dt_bias", "A_log", "D")}
        weights |= {
            f"{place}.mixer_norm.weight": layer.input_layernorm.weight,
            f"{place}.feedforward_norm.weight": layer.pre_ff_layernorm.weight,
            f"{place}.mixer.parts.1.in_proj.weight": mamba.in_proj.weight,
            f"{place}.mixer.parts.1.conv.weight": mamba.conv1d.weight,
            f"{place}.mixer.parts.1.conv.bias": mamba.conv1d.bias,
            f"{place}.mixer.parts.1.norm.weight": mamba.norm.weight,
            f"{place}.mixer.parts.1.out_proj.weight": mamba.out_proj.weight,
        } | {
            f"{place}.feedforward.parts.0.{name}.weight": getattr(layer.feed_forward, f"{name}_proj").weight
            for name in ("gate", "up", "down")
        }  # fmt: skip
    return weights


def test_falcon_h1_is_attention_and_mamba2_side_by_side() -> None:
    """Whole, and token by token; without any one of its factors the logits are others."""
    config = falcon_config()
    theirs, described = drawn(FalconH1ForCausalLM(config).eval()), falcon_spec(config)
    ours = build(described).eval().requires_grad_(False)
    ours.load_state_dict(falcon_weights(theirs))
    expected = theirs(TOKENS, use_cache=False).logits
    assert distance(ours(TOKENS).logits, expected) < EXACT
    state = ours.new_state(2)
    for place in range(T):
        logits, state = forward_step(ours, TOKENS[:, place : place + 1], state)
        assert distance(logits[:, 0], expected[:, place]) < EXACT


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_a_lost_multiplier_of_falcon_h1_shows(name: str) -> None:
    """The control: where it is 1 for us, and is not 1 for them."""
    one: Any = [1.0] * len(MULTIPLIERS[name]) if isinstance(MULTIPLIERS[name], list) else 1.0
    theirs = drawn(FalconH1ForCausalLM(falcon_config()).eval())
    ours = build(falcon_spec(falcon_config(**{name: one}))).eval().requires_grad_(False)
    ours.load_state_dict(falcon_weights(theirs))
    assert distance(ours(TOKENS).logits, theirs(TOKENS, use_cache=False).logits) > WRONG


# one block for all layers (Lan 2019); the embedding as wide as the layers


def albert_config(**changes: Any) -> AlbertConfig:
    return AlbertConfig(
        vocab_size=VOCABULARY, embedding_size=D, hidden_size=D, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=36, max_position_embeddings=32, type_vocab_size=2, hidden_act="gelu_new", **changes,
    )  # fmt: skip


def albert_spec(config: AlbertConfig) -> spec.Encoder:
    """Each group of layers passed several times."""
    norm = spec.LayerNorm(eps=config.layer_norm_eps)
    block = spec.Block(
        wiring=spec.PostNorm(norm=norm),
        mixer=spec.Attention(
            num_heads=config.num_attention_heads, bias=spec.ProjectionBiases(q=True, k=True, v=True, o=True)
        ),
        feedforward=spec.MLP(d_ff=config.intermediate_size, activation="gelu_tanh", bias=True),
    )
    passes = config.num_hidden_layers // config.num_hidden_groups
    group = {"repeat": passes, "shared": True, "blocks": [block] * config.inner_group_num}
    return spec.Encoder.parse({
        "vocab_size": VOCABULARY, "context_length": config.max_position_embeddings, "d_model": D,
        "layers": [group] * config.num_hidden_groups, "final_norm": "none", "pooler": True,
        "embedding": spec.Embedding(position=spec.Learned(), num_token_types=config.type_vocab_size, norm=norm),
        "head": "none",
    })  # fmt: skip


def albert_weights(theirs: AlbertModel, ours: nn.Module) -> dict[str, Tensor]:
    """Their tensors under our names. What maps the embedding to the layers' width is the identity."""
    tables = theirs.embeddings
    weights = {
        "embedding.token.weight": tables.word_embeddings.weight,
        "embedding.position.weight": tables.position_embeddings.weight,
        "embedding.token_type.weight": tables.token_type_embeddings.weight,
    } | {f"embedding.norm.{name}": tensor for name, tensor in tables.LayerNorm.named_parameters()}
    weights |= {f"pooler.{name}": tensor for name, tensor in theirs.pooler.named_parameters()}
    layers = [layer for group in theirs.encoder.albert_layer_groups for layer in group.albert_layers]
    blocks = dict(ours.blocks.named_children())  # type: ignore[union-attr]
    for number, layer in zip(blocks, layers, strict=True):
        attention = layer.attention
        modules = {
            "mixer.q": attention.query, "mixer.k": attention.key, "mixer.v": attention.value,
            "mixer.o": attention.dense, "mixer_norm": attention.LayerNorm, "feedforward.up": layer.ffn,
            "feedforward.down": layer.ffn_output, "feedforward_norm": layer.full_layer_layer_norm,
        }  # fmt: skip
        weights |= {
            f"blocks.{number}.{name}.{own}": tensor
            for name, module in modules.items() for own, tensor in module.named_parameters()
        }  # fmt: skip
    return weights


@pytest.mark.parametrize("groups", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_albert_is_one_group_of_layers_passed_again_and_again(groups: tuple[int, int]) -> None:
    """Groups of weights, and layers in each."""
    config = albert_config(num_hidden_groups=groups[0], inner_group_num=groups[1])
    theirs = drawn(AlbertModel(config).eval())
    mapping = theirs.encoder.embedding_hidden_mapping_in
    mapping.weight.copy_(torch.eye(D))
    mapping.bias.zero_()
    described = albert_spec(config)
    ours = build(described).eval().requires_grad_(False)
    ours.load_state_dict(albert_weights(theirs, ours))
    expected, kinds = theirs(TOKENS, token_type_ids=TOKENS % 2).last_hidden_state, TOKENS % 2
    assert distance(ours(TOKENS, token_types=kinds).hidden, expected) < EXACT
    fewer = build(spec.assign(described, [f"num_layers={groups[1]}"])).eval()  # the control: one pass
    fewer.load_state_dict(ours.state_dict(), strict=False)
    assert distance(fewer(TOKENS, token_types=kinds).hidden, expected) > WRONG


# a decoder of few weights that reads its input again in each of four passes (Ouro; HRM)


def test_a_decoder_of_four_passes_learns_and_writes() -> None:
    """It has the weights of two layers and the depth of eight; what it reads again changes its logits."""
    norm = spec.RMSNorm()
    block = spec.Block(
        wiring=spec.SandwichNorm(norm=norm), mixer=spec.Attention(num_heads=4, position=spec.Rotary()),
        feedforward=spec.GatedMLP(d_ff=36, activation="silu"),
    )  # fmt: skip
    loop = {"repeat": 4, "shared": True, "reinject": True, "blocks": [block, block]}
    sizes = {"vocab_size": VOCABULARY, "context_length": 32, "d_model": D, "final_norm": norm}
    model = build(spec.Decoder.parse(sizes | {"layers": [loop]}))
    two = build(spec.Decoder.parse(sizes | {"layers": [block, block]}))
    plain = build(spec.Decoder.parse(sizes | {"layers": [loop | {"reinject": False}]})).eval()
    assert len(model.blocks) == 8 and model.state_dict().keys() == two.state_dict().keys()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(80):
        logits = model(TOKENS[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        expected, state = model.eval()(TOKENS).logits, model.new_state(2)
        for place in range(T):
            logits, state = forward_step(model, TOKENS[:, place : place + 1], state)
            assert distance(logits[:, 0], expected[:, place]) < EXACT
        plain.load_state_dict(model.state_dict())
        assert distance(plain(TOKENS).logits, expected) > WRONG
