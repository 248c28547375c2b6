"""Models whose published code is their own, against transformers' or written-out equations, every tensor random."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    KimiLinearConfig,
    KimiLinearForCausalLM,
    MiMoV2FlashConfig,
    MiMoV2FlashForCausalLM,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
    Step3p7Config,
    Step3p7ForConditionalGeneration,
)
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.mimo_v2_flash import modeling_mimo_v2_flash

from archetype.convert.infer import read_unknown
from archetype.convert.infer.checkpoint_info import Shapes
from archetype.errors import CheckpointError
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.causal import in_chunks
from tests.helpers.own_code import (
    Tensors,
    as_kimi_linear,
    as_mimo_flash,
    as_mimo_v2,
    as_naive,
    as_naive_n05,
    as_step3p5,
    as_step3p7,
)
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance
from tests.helpers.zoo import drawn
from tests.parity.test_inferred_families import PROMPT, TOKENS, read, their_steps

MUSE: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 0.3, "post_norm_eps": 0.1,
    "sliding_window": 8, "output_multiplier": 0.7, "final_logit_softcapping": 2.0, "pad_token_id": None,
    "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
SEES = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}


@torch.no_grad()
def test_muse_glimmer(tmp_path: Path) -> None:
    """Queries and keys with a norm without weights, also where nothing rotates, and norms of outputs of another eps."""
    config = MuseGlimmerConfig(text_config=MUSE, vision_config=SEES, out_hidden_size=32, projector_hidden_size=8)
    drawn(MuseGlimmerForConditionalGeneration(config)).save_pretrained(tmp_path)
    theirs = MuseGlimmerForConditionalGeneration.from_pretrained(tmp_path).eval()
    lm = read(tmp_path)
    full, windowed = (lm.spec.layers[number].mixer for number in (0, 1))
    assert full.position.is_absent and full.pattern.kind == "full" and windowed.pattern.size == 8
    whole = theirs(TOKENS).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    other = build(assign(lm.spec, ["layers[0].mixer.qk_norm=none"]))
    other.load_state_dict(lm.model.state_dict())  # this norm has no weights
    assert distance(other.eval()(TOKENS).logits, whole) > WRONG
    values = json.loads((tmp_path / "config.json").read_text())
    del values["text_config"]["layer_rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="layer_rope_theta: is missing"):
        read(tmp_path)


MIMO: dict[str, Any] = {
    "architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "swa_num_attention_heads": 8, "swa_num_key_value_heads": 4, "head_dim": 12, "v_head_dim": 5, "swa_head_dim": 12,
    "swa_v_head_dim": 5, "hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1], "rope_theta": 77.0,
    "swa_rope_theta": 33.0, "partial_rotary_factor": 0.334, "sliding_window": 8, "sliding_window_size": 8,
    "attention_chunk_size": 8, "attention_value_scale": 0.612, "attention_bias": False, "hidden_act": "silu",
    "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "layernorm_epsilon": 1e-5,
    "attention_projection_layout": "fused_qkv", "moe_intermediate_size": 16, "n_routed_experts": 6, "n_group": 1,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": None, "scoring_func": "sigmoid",
    "topk_group": 1, "topk_method": "noaux_tc", "tie_word_embeddings": False, "max_position_embeddings": 128,
}  # fmt: skip


@torch.no_grad()
def test_mimo_v2(tmp_path: Path) -> None:
    """Queries, keys and values in one tensor, of as many shards everywhere as layers with full attention have keys."""
    config = MiMoV2FlashConfig(**as_mimo_flash(MIMO))
    theirs, tensors = saved(MiMoV2FlashForCausalLM(config), tmp_path / "theirs")
    lm = read(written(tmp_path / "file", MIMO, as_mimo_v2(tensors, MIMO)))
    full, windowed = (lm.spec.layers[number].mixer for number in (0, 1))
    assert (full.num_kv_heads, windowed.num_kv_heads, full.v_head_dim, windowed.v_head_dim) == (2, 4, 5, 5)
    assert (full.sinks, windowed.sinks, windowed.pattern.size, full.value_scale) == (False, True, 9, 0.612)
    assert (full.position.theta, windowed.position.theta, windowed.position.dim) == (77.0, 33.0, 4)
    whole = theirs(TOKENS).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    wrong = read(written(tmp_path / "wrong", MIMO, as_mimo_v2(tensors, MIMO, 1)))
    assert distance(wrong.model(TOKENS).logits, whole) > WRONG
    apart = {name.replace(".sinks", ".attention_sink_bias"): tensor for name, tensor in tensors.items()}
    split = read(written(tmp_path / "split", MIMO | {"attention_projection_layout": "split"}, apart))
    assert distance(split.model(TOKENS).logits, whole) < EXACT


NAIVE: dict[str, Any] = {key: value for key, value in MIMO.items() if key not in {
    "attention_projection_layout", "sliding_window_size", "attention_chunk_size",
}} | {
    "architectures": ["NaiveN05FlashForCausalLM"], "model_type": "naive_n05_flash", "enable_dsa": True,
    "index_n_heads": 3, "index_head_dim": 10, "index_n_kv_heads": 1, "index_top_k": 4,
    "indexer_activation_dtype": "bf16",
}  # fmt: skip


class Choosing(modeling_mimo_v2_flash.MiMoV2FlashAttention):
    """Attention to the keys with the largest sums of positive products by head, as Naive N0.5's class has it."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        if config.layer_types[layer_idx] == "full_attention":
            self.indexer = torch.nn.ModuleDict({
                "wq": torch.nn.Linear(config.hidden_size, 30, bias=False),
                "wk": torch.nn.Linear(config.hidden_size, 10, bias=False),
                "k_norm": torch.nn.LayerNorm(10, eps=1e-5),
                "weights_proj": torch.nn.Linear(config.hidden_size, 3, bias=False),
            })  # fmt: skip

    def forward(
        self, hidden_states: torch.Tensor, *, position_embeddings: Any, attention_mask: Any, **rest: Any
    ) -> Any:
        if hasattr(self, "indexer"):
            q = self.indexer["wq"](hidden_states).unflatten(-1, (3, 10)).transpose(1, 2)
            k = self.indexer["k_norm"](self.indexer["wk"](hidden_states))[:, None]
            q, k = modeling_gpt_neox.apply_rotary_pos_emb(q, k, *position_embeddings)
            weights = self.indexer["weights_proj"](hidden_states).transpose(1, 2)[..., None]
            scores = (torch.relu(q @ k.transpose(-1, -2)) * weights).sum(1, keepdim=True)
            later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
            chosen = scores.masked_fill(later, -torch.inf).argsort(dim=-1, descending=True, stable=True)[..., :4]
            left_out = torch.ones_like(scores, dtype=torch.bool).scatter(-1, chosen, False) | later
            attention_mask = torch.zeros_like(scores).masked_fill(left_out, torch.finfo(scores.dtype).min)
        return super().forward(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask, **rest
        )


@torch.no_grad()
def test_naive_n05(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MiMo-V2-Flash's class, whose layers with full attention attend to keys that an index chooses."""
    monkeypatch.setattr(modeling_mimo_v2_flash, "MiMoV2FlashAttention", Choosing)
    config = MiMoV2FlashConfig(**as_naive(NAIVE), attn_implementation="eager")
    theirs, tensors = saved(MiMoV2FlashForCausalLM(config), tmp_path / "theirs")
    lm = read(written(tmp_path / "file", NAIVE, as_naive_n05(tensors, NAIVE)))
    full, windowed = (lm.spec.layers[number].mixer for number in (0, 1))
    assert (full.index.top_k, full.index.position.dim, windowed.index, windowed.pattern.size) == (4, 4, None, 8)
    theirs.set_attn_implementation("eager")
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts), whole) < EXACT
    other = read(written(tmp_path / "other", NAIVE | {"index_top_k": 3}, as_naive_n05(tensors, NAIVE)))
    assert distance(other.model(TOKENS).logits, whole) > WRONG


STEP: dict[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 8,
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 6,
                                "num_attention_groups": 2, "head_dim": 8},
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "num_nextn_predict_layers": 1, "rope_theta": [77.0, 33.0, 33.0, 77.0, 33.0], "sliding_window": 8,
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0], "yarn_only_types": ["full_attention"], "moe_num_experts": 6,
    "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 16,
                     "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "moe_top_k": 2, "moe_intermediate_size": 16, "share_expert_dim": 24, "moe_layers_enum": "1,2,3",
    "rms_norm_eps": 0.1, "moe_router_scaling_factor": 3.0, "norm_expert_weight": True,
    "swiglu_limits": [0.0, 0.0, 0.2, 0.3, 0.0],
    "swiglu_limits_shared": [0.0, 0.4, 0.0, 0.5, 0.0], "tie_word_embeddings": False, "use_head_wise_attn_gate": True,
    "max_position_embeddings": 128,
}  # fmt: skip


@torch.no_grad()
def test_step_3_5(tmp_path: Path) -> None:
    """Heads, rotations and bounds of products by layer, under the names that Step 3.7's class reads."""
    config = Step3p7Config(**as_step3p7(STEP))
    theirs, tensors = saved(Step3p7ForConditionalGeneration(config), tmp_path / "theirs")
    lm = read(written(tmp_path / "file", STEP, as_step3p5(tensors, STEP)))
    full, windowed = (lm.spec.layers[number].mixer for number in (0, 1))
    assert (full.num_heads, windowed.num_heads, full.gate.per, full.position.dim) == (4, 6, "head", 4)
    assert full.position.scaling.kind == "llama3" and windowed.position.scaling.kind == "none"
    limits = [(layer.feedforward.expert.limit, layer.feedforward.shared.limit) for layer in lm.spec.layers[1:]]
    assert limits == [(None, 0.4), (0.2, None), (0.3, 0.5)]
    whole = theirs(TOKENS).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    other = build(assign(lm.spec, ["layers[2].feedforward.expert.limit_after=false"]))
    other.load_state_dict(lm.model.state_dict())
    assert distance(other.eval()(TOKENS).logits, whole) > WRONG
    shapes: Shapes = {name: tuple(tensor.shape) for name, tensor in as_step3p5(tensors, STEP).items()}
    for key, value, cause in (
        ("layer_types", ["full_attention", "chunked", *STEP["layer_types"][2:]], "has no known kind for each of 4"),
        ("partial_rotary_factors", [0.5], "has no entry for layer 1"),
        ("yarn_only_types", None, r"None is not \['full_attention'\]"),  # by its own code every layer is scaled then
        ("rope_parameters", {"full_attention": {"rope_theta": 77.0}}, "is not read for this type"),
    ):
        with pytest.raises(CheckpointError, match=f"{key}: {cause}"):
            read_unknown(STEP | {key: value}, shapes)


SOLAR: dict[str, Any] = {
    "architectures": ["SolarOpen2ForCausalLM"], "model_type": "solar_open2", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
    "rms_norm_eps": 0.1, "moe_intermediate_size": 16, "n_routed_experts": 6, "n_shared_experts": 1, "n_group": 1,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "topk_group": 1,
    "first_k_dense_replace": 0, "use_qk_norm": False, "use_rope": False, "gqa_interval": 3, "gqa_layers": [0, 3],
    "use_gqa_gate": True, "use_gqa_gate_bias": False, "kda_use_full_proj": False, "kda_allow_neg_eigval": True,
    "linear_attn_config": {"short_conv_kernel_size": 4, "head_dim": 8, "num_heads": 3, "num_kv_heads": None},
    "tie_word_embeddings": False, "max_position_embeddings": 128, "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip


class Gated(torch.nn.Module):
    """Solar Open 2's attention as vLLM's model has it: no positions, and a sigmoid of x on the heads' outputs."""

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        heads, keys, width = self.sizes
        for name, rows in {"q": heads, "k": keys, "v": keys, "g": heads}.items():
            setattr(self, f"{name}_proj", torch.nn.Linear(config.hidden_size, rows * width, bias=False))
        self.o_proj = torch.nn.Linear(heads * width, config.hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        heads, keys, width = self.sizes
        q, k, v = (
            getattr(self, f"{name}_proj")(hidden_states).unflatten(-1, (-1, width)).transpose(1, 2) for name in "qkv"
        )
        k, v = (one.repeat_interleave(heads // keys, dim=1) for one in (k, v))
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) * width**-0.5).masked_fill(later, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
        return self.o_proj(mixed * torch.sigmoid(self.g_proj(hidden_states))), None


@torch.no_grad()
def test_solar_open_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kimi Linear's delta attention with rates up to 2, between layers of attention with gates, without positions."""
    rule = modeling_kimi_linear.chunk_kimi_delta_attention

    def doubled(*args: Any, beta: torch.Tensor, **options: Any) -> Any:
        return rule(*args, beta=2 * beta, **options)

    monkeypatch.setattr(modeling_kimi_linear, "chunk_kimi_delta_attention", doubled)
    monkeypatch.setattr(modeling_kimi_linear, "KimiLinearAttention", Gated)
    config = KimiLinearConfig(**as_kimi_linear(SOLAR))
    theirs, tensors = saved(KimiLinearForCausalLM(config), tmp_path / "theirs")
    lm = read(written(tmp_path / "file", SOLAR, tensors))
    full, linear = (lm.spec.layers[number].mixer for number in (3, 1))
    assert lm.spec.layers[1].feedforward.num_experts == 6
    assert full.position.is_absent and (full.gate.per, full.gate.activation) == ("feature", "sigmoid")
    assert (linear.num_heads, linear.head_dim, linear.decay_rank, linear.negative_eigenvalues) == (3, 8, 8, True)
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts), whole) < EXACT
    other = read(written(tmp_path / "other", SOLAR | {"kda_allow_neg_eigval": False}, tensors))
    assert distance(other.model(TOKENS).logits, whole) > WRONG


def saved(model: Any, folder: Path) -> tuple[Any, Tensors]:
    """A model of transformers with random tensors, and them as they are saved."""
    drawn(model).save_pretrained(folder)
    return type(model).from_pretrained(folder).eval(), load_file(folder / "model.safetensors")


def written(folder: Path, values: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "model.safetensors")
    return folder
