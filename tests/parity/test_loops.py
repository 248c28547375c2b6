"""Loops over all layers with a norm between the passes: Nanbeige 4.2, and Ouro with its gate, by their equations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import archetype
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from archetype.families import preset
from archetype.models.build import build
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose, same_tensors, text
from tests.helpers.weights import distance, randomize

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-3, "rope_theta": 100.0, "hidden_act": "silu",
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
NANBEIGE = SIZES | {
    "architectures": ["NanbeigeForCausalLM"], "model_type": "nanbeige", "num_loops": 2, "loop_loss_weights": [],
    "skip_loop_final_norm": False, "enable_double_loop_split": False, "loop_share_kv": False, "qk_layernorm": False,
    "enable_mhc": False, "emb_neighbor_num": None, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
OURO = SIZES | {
    "architectures": ["OuroForCausalLM"], "model_type": "ouro", "total_ut_steps": 3, "early_exit_threshold": 1.0,
    "layer_types": ["full_attention"] * 2, "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
TOKENS = text(11)


class Loop(torch.nn.Module):
    """Layers of Llama, run several times; with further norms and a gate they are those of Ouro."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        rope = {"rope_theta": SIZES["rope_theta"], "rope_type": "default"}
        config = LlamaConfig(**SIZES, rope_parameters=rope, attn_implementation="eager")
        self.llama = randomize(LlamaForCausalLM(config)).eval()
        self.llama.model.rotary_emb = LlamaRotaryEmbedding(config)  # which has not been drawn
        self.is_ouro = values["model_type"] == "ouro"
        size = SIZES["hidden_size"]
        self.further = torch.nn.ModuleDict()
        for layer in range(2 * self.is_ouro):
            for name in ("input_layernorm_2", "post_attention_layernorm_2"):
                self.further[f"{layer}_{name}"] = torch.nn.RMSNorm(size, 1e-3)
        self.gate = torch.nn.Linear(size, 1)
        randomize(self.further)
        randomize(self.gate)

    def tensors(self) -> dict[str, Tensor]:
        further = {
            f"model.layers.{name[0]}.{name[2:]}.weight": norm.weight.detach() for name, norm in self.further.items()
        }
        gate = {f"model.early_exit_gate.{name}": value.detach() for name, value in self.gate.named_parameters()}
        return {**self.llama.state_dict(), **further, **(gate if self.is_ouro else {})}

    def forward(self, tokens: Tensor, passes: int, between: bool = True, threshold: float | None = None) -> Tensor:
        """The logits, of each token those of the pass that it leaves."""
        model, x = self.llama.model, self.llama.model.embed_tokens(tokens)
        rotary = model.rotary_emb(x, torch.arange(tokens.shape[1])[None])
        mask = torch.full((tokens.shape[1],) * 2, -torch.inf).triu(1)
        ends, gates = [], []
        for number in range(passes):
            for index, layer in enumerate(model.layers):
                y, _ = layer.self_attn(layer.input_layernorm(x), rotary, mask)
                x = x + (self.further[f"{index}_input_layernorm_2"](y) if self.is_ouro else y)
                y = layer.mlp(layer.post_attention_layernorm(x))
                x = x + (self.further[f"{index}_post_attention_layernorm_2"](y) if self.is_ouro else y)
            x = model.norm(x) if between or number == passes - 1 else x
            ends.append(x)
            gates.append(self.gate(x)[..., 0].sigmoid())
        logits: Tensor = self.llama.lm_head(ends[-1])
        if threshold is None:
            return logits
        for row, column in torch.cartesian_prod(*map(torch.arange, tokens.shape)).tolist():
            stays = 1.0
            for end, gate in zip(ends, gates, strict=True):  # the first pass up to which the probabilities sum to it
                stays = stays * (1 - float(gate[row, column]))
                if 1 - stays >= threshold:
                    logits[row, column] = self.llama.lm_head(end[row, column])
                    break
        return logits


def write(folder: Path, loop: Loop, values: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    save_file({name: tensor.contiguous() for name, tensor in loop.tensors().items()}, folder / "model.safetensors")
    return folder


@torch.no_grad()
@pytest.mark.parametrize(
    ("values", "settings"),
    [
        (NANBEIGE, {"passes": 2}),
        (NANBEIGE | {"skip_loop_final_norm": True, "loop_loss_weights": [0.2, 0.3]}, {"passes": 3, "between": False}),
        (OURO, {"passes": 3, "threshold": 1.0}),
        (OURO | {"early_exit_threshold": 0.6}, {"passes": 3, "threshold": 0.6}),
    ],
    ids=["nanbeige", "nanbeige without", "ouro", "ouro that leaves"],
)
def test_a_loop_is_its_equations(values: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    """Whole, in chunks and step by step; written back to the bit; another number of passes would show."""
    loop = Loop(values)
    expected = loop(TOKENS, **settings)
    lm: Any = archetype.load(write(tmp_path / "model", loop, values), dtype="float32")
    assert not lm.family.reading.unknown
    assert sum(parameter.numel() for parameter in lm.model.parameters()) == total_parameters(lm.spec)
    assert lm.spec.num_layers == 2 * settings["passes"]
    assert distance(lm.model(TOKENS).logits, expected) < EXACT
    for cuts in ([4, 9], list(range(1, TOKENS.shape[1]))):
        assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(2, TOKENS.shape[1]), cuts), expected) < EXACT
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "model", tmp_path / "written")
    assert distance(loop(TOKENS, **settings | {"passes": 1}), expected) > WRONG
    assert distance(loop(TOKENS, **settings | {"between": not settings.get("between", True)}), expected) > WRONG


@torch.no_grad()
def test_the_gate_of_ouro_is_kept_and_its_exit_is_a_setting(tmp_path: Path) -> None:
    """With the published threshold no token leaves; with others they leave after different passes."""
    loop = Loop(OURO)
    lm: Any = archetype.load(write(tmp_path, loop, OURO), dtype="float32")
    last = loop(TOKENS, 3)
    assert distance(lm.model(TOKENS).logits, last) < EXACT  # the gate has no say
    assert torch.equal(lm.model.exit_gate.weight, loop.gate.weight)
    passes = {}
    for threshold in (0.3, 0.6, 0.9):
        lm.model.exit_gate.threshold = threshold
        logits = lm.model(TOKENS).logits
        assert distance(logits, loop(TOKENS, 3, threshold=threshold)) < EXACT
        passes[threshold] = (logits - last).abs().amax(-1) > WRONG  # tokens that left earlier
    assert passes[0.3].all() and passes[0.6].any() and not passes[0.6].all() and passes[0.9].sum() < passes[0.6].sum()
    lm.model.train()
    assert distance(lm.model(TOKENS).logits, last) < EXACT
    lose("exit_gate.weight")(lm.model.eval())
    lm.model.exit_gate.threshold = 0.6
    assert distance(lm.model(TOKENS).logits, loop(TOKENS, 3, threshold=0.6)) > WRONG


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (NANBEIGE | {"loop_share_kv": True}, "loop_share_kv: True needs a part that is not supported"),
        (NANBEIGE | {"enable_depth_attention": True}, "enable_depth_attention: True needs a part"),
        (OURO | {"early_exit_step": 1}, "early_exit_step: 1 is not supported"),
    ],
    ids=["keys", "depth", "step"],
)
def test_what_a_loop_cannot_have_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        archetype.load(write(tmp_path, Loop(values), values))


@torch.no_grad()
def test_under_autocast_the_stream_stays_in_float32_between_the_passes() -> None:
    model, read = randomize(build(preset("nanbeige-tiny"))).eval(), []
    model.blocks[0].register_forward_pre_hook(lambda block, arguments: read.append(arguments[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(TOKENS)
    assert read == [torch.float32] * 2
