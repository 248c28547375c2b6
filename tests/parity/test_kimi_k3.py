"""The text half of Kimi K3, which no class of transformers computes, against its equations, token by token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu

import archetype
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose, same_tensors
from tests.helpers.weights import distance

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily", "ignore::archetype.errors.LeftOut")

D, HEADS, P, EXPERTS, LATENT, EPS = 24, 3, 8, 6, 10, 1e-5
KDA, FULL = [1, 2, 3, 5], [4]
VALUES: dict[str, Any] = {
    "architectures": ["KimiK3ForConditionalGeneration"], "model_type": "kimi_k3",
    "text_config": {
        "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "hidden_size": D,
        "num_hidden_layers": 5, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "intermediate_size": 20,
        "vocab_size": 50, "model_max_length": 64, "rms_norm_eps": EPS, "hidden_act": "situ",
        "activation_situ_beta": 0.5, "activation_situ_linear_beta": 0.7, "attn_res_block_size": 2,
        "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 12, "num_experts": EXPERTS,
        "num_experts_per_token": 2, "num_shared_experts": 2, "moe_renormalize": True, "num_expert_group": 1,
        "topk_group": 1, "use_grouped_topk": True, "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 1.5, "routed_expert_hidden_size": LATENT, "latent_moe_use_norm": True,
        "q_lora_rank": 14, "kv_lora_rank": 9, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "mla_use_nope": True, "mla_use_output_gate": True, "tie_word_embeddings": False,
        "linear_attn_config": {
            "full_attn_layers": FULL, "kda_layers": KDA, "head_dim": P, "num_heads": HEADS,
            "short_conv_kernel_size": 4, "gate_lower_bound": -5.0, "use_full_rank_gate": True,
        },
    },
}  # fmt: skip
TOKENS = torch.randint(50, (1, 11), generator=torch.Generator().manual_seed(3))


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the published file, by name."""
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (50, D), "lm_head": (50, D), "model.norm": (D,)}

    def depth(prefix: str) -> None:
        sizes.update({f"{prefix}_norm": (D,), f"{prefix}_proj": (1, D)})

    def network(prefix: str, width: int, inputs: int, names: tuple[str, str, str]) -> None:
        gate, up, down = (f"{prefix}.{name}" for name in names)
        sizes.update({gate: (width, inputs), up: (width, inputs), down: (inputs, width)})

    depth("model.output_attn_res")
    for layer in range(5):
        below = f"model.layers.{layer}"
        depth(f"{below}.self_attention_res")
        depth(f"{below}.mlp_res")
        sizes |= {f"{below}.{name}_layernorm": (D,) for name in ("input", "post_attention")}
        mixer = f"{below}.self_attn"
        if layer + 1 in KDA:
            sizes |= {f"{mixer}.{name}_proj": (HEADS * P, D) for name in "qkvg"}
            sizes |= {f"{mixer}.{name}_conv1d": (HEADS * P, 1, 4) for name in "qkv"}
            sizes |= {f"{mixer}.f_a_proj": (P, D), f"{mixer}.f_b_proj": (HEADS * P, P), f"{mixer}.b_proj": (HEADS, D)}
            sizes |= {f"{mixer}.o_norm": (P,), f"{mixer}.o_proj": (D, HEADS * P)}
            sizes |= {f"{mixer}.A_log": (P,), f"{mixer}.dt_bias": (HEADS * P,)}
        else:
            sizes |= {f"{mixer}.q_a_proj": (14, D), f"{mixer}.q_a_layernorm": (14,), f"{mixer}.kv_a_layernorm": (9,)}
            sizes |= {f"{mixer}.q_b_proj": (HEADS * 12, 14), f"{mixer}.kv_a_proj_with_mqa": (13, D)}
            sizes |= {f"{mixer}.kv_b_proj": (HEADS * 16, 9), f"{mixer}.g_proj": (HEADS * 8, D)}
            sizes |= {f"{mixer}.o_proj": (D, HEADS * 8)}
        if not layer:
            network(f"{below}.mlp", 20, D, ("gate_proj", "up_proj", "down_proj"))
            continue
        moe = f"{below}.block_sparse_moe"
        network(f"{moe}.shared_experts", 24, D, ("gate_proj", "up_proj", "down_proj"))
        for expert in range(EXPERTS):
            network(f"{moe}.experts.{expert}", 12, LATENT, ("w1", "w3", "w2"))
        sizes |= {f"{moe}.gate": (EXPERTS, D), f"{moe}.gate.e_score_correction_bias": (EXPERTS,)}
        sizes |= {
            f"{moe}.routed_expert_{name}_proj": (LATENT, D)[:: 1 if name == "down" else -1] for name in ("down", "up")
        }
        sizes |= {f"{moe}.routed_expert_norm": (LATENT,)}
    bare = ("A_log", "dt_bias", "e_score_correction_bias")
    return {f"language_model.{name}{'' if name.endswith(bare) else '.weight'}": size for name, size in sizes.items()}


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = {
        name: 0.4 * torch.randn(size, generator=generator) + float("norm" in name) for name, size in shapes().items()
    }
    for name in drawn:
        if name.endswith("A_log"):
            drawn[name][HEADS:] = 0.0  # behind the rates of the heads, as in the published file
    return drawn


class Reference:
    """The equations of Kimi K3 in double precision, one position after the other."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = {
            name.removeprefix("language_model.").removesuffix(".weight"): w.double() for name, w in weights.items()
        }
        self.prefix = ""

    def w(self, name: str) -> Tensor:
        return self.weights[f"{self.prefix}{name}"]

    def project(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w(name).T

    def mix(self, name: str, x: Tensor) -> Tensor:
        return self.project(f"self_attn.{name}", x)

    def moe(self, name: str, x: Tensor) -> Tensor:
        return self.project(f"block_sparse_moe.{name}", x)

    def norm(self, name: str, x: Tensor, eps: float = EPS) -> Tensor:
        return rms_norm(x, x.shape[-1:], self.w(name), eps)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return 0.5 * torch.tanh(gate / 0.5) * gate.sigmoid() * 0.7 * torch.tanh(up / 0.7)

    def network(self, below: str, x: Tensor) -> Tensor:
        gate, up = (self.project(f"{below}.{name}_proj", x) for name in ("gate", "up"))
        return self.project(f"{below}.down_proj", self.gated(gate, up))

    def convolved(self, name: str, x: Tensor) -> Tensor:
        taps, padded = self.w(f"self_attn.{name}_conv1d").squeeze(1), torch.cat((x.new_zeros(3, x.shape[1]), x))
        return silu(sum(padded[tap : tap + len(x)] * taps[:, tap] for tap in range(4))).unflatten(-1, (HEADS, P))

    def delta(self, x: Tensor) -> Tensor:
        q, k, v = (self.convolved(name, self.project(f"self_attn.{name}_proj", x)) for name in "qkv")
        q, k = (y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for y in (q, k))
        q = q / P**0.5
        steps = self.mix("f_b_proj", self.mix("f_a_proj", x)) + self.w("self_attn.dt_bias")
        rates = self.w("self_attn.A_log")[:HEADS, None].exp()
        decay = (-5.0 * torch.sigmoid(rates * steps.unflatten(-1, (HEADS, P)))).exp()
        beta, memory, outputs = self.mix("b_proj", x).sigmoid(), x.new_zeros(HEADS, P, P), []
        for t in range(len(x)):
            memory = memory * decay[t, :, :, None]
            wrong = v[t] - torch.einsum("hkv,hk->hv", memory, k[t])
            memory = memory + beta[t, :, None, None] * k[t, :, :, None] * wrong[:, None]
            outputs.append(torch.einsum("hkv,hk->hv", memory, q[t]))
        y = self.norm("self_attn.o_norm", torch.stack(outputs)).flatten(1)
        return self.mix("o_proj", y * self.mix("g_proj", x).sigmoid())

    def latent(self, x: Tensor) -> Tensor:
        q = self.project("self_attn.q_b_proj", self.norm("self_attn.q_a_layernorm", self.mix("q_a_proj", x), 1e-6))
        c, shared = self.mix("kv_a_proj_with_mqa", x).split((9, 4), -1)
        both = self.mix("kv_b_proj", self.norm("self_attn.kv_a_layernorm", c, 1e-6)).unflatten(-1, (HEADS, 16))
        k = torch.cat((both[..., :8], shared[:, None].expand(-1, HEADS, -1)), -1)
        scores = torch.einsum("thd,shd->hts", q.unflatten(-1, (HEADS, 12)), k) / 12**0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        y = torch.einsum("hts,shd->thd", scores.masked_fill(later, -torch.inf).softmax(-1), both[..., 8:]).flatten(1)
        return self.mix("o_proj", y * self.mix("g_proj", x).sigmoid())

    def experts(self, x: Tensor) -> Tensor:
        scores = self.moe("gate", x).sigmoid()
        chosen = (scores + self.w("block_sparse_moe.gate.e_score_correction_bias")).topk(2).indices
        latent, sums = self.moe("routed_expert_down_proj", x), []
        for t in range(len(x)):
            weights = 1.5 * scores[t, chosen[t]] / scores[t, chosen[t]].sum()
            total = torch.zeros_like(latent[t])
            for weight, expert in zip(weights, chosen[t].tolist(), strict=True):
                gate, up = (self.moe(f"experts.{expert}.{name}", latent[t]) for name in ("w1", "w3"))
                total = total + weight * self.moe(f"experts.{expert}.w2", self.gated(gate, up))
            sums.append(total)
        routed = self.norm("block_sparse_moe.routed_expert_norm", torch.stack(sums))
        routed = self.moe("routed_expert_up_proj", routed)
        return routed + self.network("block_sparse_moe.shared_experts", x)

    def over_depth(self, name: str, sums: list[Tensor]) -> Tensor:
        stacked = torch.stack(sums, 1)  # (T, n, D)
        scores = self.norm(f"{name}_norm", stacked) @ self.w(f"{name}_proj")[0]
        return (scores.softmax(-1)[..., None] * stacked).sum(1)

    def logits(self, tokens: Tensor) -> Tensor:
        complete: list[Tensor] = []
        current = self.weights["model.embed_tokens"][tokens[0]]
        for layer in range(5):
            self.prefix = f"model.layers.{layer}."
            read = self.over_depth("self_attention_res", [*complete, current]) if complete else current
            y = (self.delta if layer + 1 in KDA else self.latent)(self.norm("input_layernorm", read))
            if layer % 2 == 0:
                complete, current = [*complete, current], y
            else:
                current = current + y
            read = self.norm("post_attention_layernorm", self.over_depth("mlp_res", [*complete, current]))
            current = current + (self.experts(read) if layer else self.network("mlp", read))
        self.prefix = ""
        x = self.norm("model.norm", self.over_depth("model.output_attn_res", [*complete, current]))
        return self.project("lm_head", x)[None]


def write(folder: Path, weights: dict[str, Tensor], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    text = VALUES["text_config"] | changes
    (folder / "config.json").write_text(json.dumps(VALUES | {"text_config": text}))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@torch.no_grad()
def test_kimi_k3_is_its_equations(tmp_path: Path) -> None:
    """Whole, in chunks and step by step, with controls for what is new here; written back to the bit."""
    weights = tensors()
    expected = Reference(weights).logits(TOKENS)
    lm: Any = archetype.load(write(tmp_path / "model", weights), dtype="float32")
    assert lm.family.reading is not None and not lm.family.reading.unknown
    assert sum(parameter.numel() for parameter in lm.model.parameters()) == total_parameters(lm.spec)
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "model", tmp_path / "written")
    lm.model.double()
    assert distance(lm.model(TOKENS).logits, expected) < 1e-12
    for cuts in ([4, 9], list(range(1, TOKENS.shape[1]))):
        assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts), expected) < EXACT
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for lost in ("1.feedforward.latent_norm.weight", "3.mixer_residual.attend.norm_weight", "0.mixer.A_log"):
        lose(f"blocks.{lost}")(lm.model)
        assert distance(lm.model(TOKENS).logits, expected) > WRONG, lost
        lm.model.load_state_dict(state)


def test_what_kimi_k3_leaves_open_is_refused(tmp_path: Path) -> None:
    weights = tensors()
    with pytest.raises(CheckpointError, match="latent attention with rotary positions"):
        archetype.load(write(tmp_path, weights, mla_use_nope=False))
    weights["language_model.model.layers.0.self_attn.A_log"][-1] = 1.0
    with pytest.raises(CheckpointError, match="other numbers than zero in its last 5 rows"):
        archetype.load(write(tmp_path, weights))
