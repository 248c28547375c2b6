"""One small model of each family, with weights in which nothing is hidden."""

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from archetype import spec
from archetype.convert.hf_folder import write_model
from archetype.families import FAMILIES
from archetype.families.bert import bert
from archetype.families.big_bird import bigbird
from archetype.families.bloom import bloom
from archetype.families.deberta_v2 import deberta
from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.deepseek_v3 import deepseek_v3
from archetype.families.diffusion import dream, llada
from archetype.families.eurobert import eurobert
from archetype.families.flash_linear_attention import FAMILIES as OF_FLA
from archetype.families.gemma import gemma
from archetype.families.gemma2 import gemma2
from archetype.families.gemma3_text import gemma3_text
from archetype.families.gpt2 import gpt2
from archetype.families.gpt_oss import gpt_oss
from archetype.families.llama import llama
from archetype.families.longformer import longformer
from archetype.families.mamba import mamba
from archetype.families.mamba2 import mamba2
from archetype.families.marian import marian
from archetype.families.mistral import mistral
from archetype.families.mixtral import mixtral
from archetype.families.modernbert import modernbert
from archetype.families.mpt import mpt
from archetype.families.olmo2 import olmo2
from archetype.families.phi3 import phi3
from archetype.families.qwen2 import qwen2
from archetype.families.qwen3 import qwen3
from archetype.families.qwen3_moe import qwen3_moe
from archetype.families.rwkv7 import rwkv7
from archetype.families.smollm3 import smollm3
from archetype.families.t5 import t5
from archetype.families.vit import vit
from archetype.models.build import Model, build
from tests.helpers.examples import every
from tests.helpers.weights import randomize

COMMON: dict[str, Any] = dict(num_layers=2, d_model=8, vocab_size=13, context_length=16)
GROUPED: dict[str, Any] = COMMON | dict(num_heads=2, num_kv_heads=1, d_ff=12)
EXPERTS: dict[str, Any] = COMMON | dict(num_heads=2, num_kv_heads=1, head_dim=6, num_experts=3, experts_per_token=2)
SPECS = {
    "gpt2": gpt2(num_layers=2, d_model=8, num_heads=2, vocab_size=13, context_length=16),
    "gpt2 untied": gpt2(num_layers=1, d_model=8, num_heads=2, vocab_size=13, context_length=16, tied=False),
    "llama": llama(num_layers=2, d_model=8, num_heads=4, num_kv_heads=2, d_ff=12, vocab_size=13, context_length=16),
    "llama tied": llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=13, context_length=16, tied=True),
    "llama with biases": llama(
        num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=13, attention_bias=True, mlp_bias=True
    ),
    "mistral": mistral(**GROUPED, window=4),
    "mixtral": mixtral(**GROUPED, num_experts=3),
    "qwen2": qwen2(**GROUPED),
    "gemma": gemma(**GROUPED, head_dim=6),
    "gemma2": gemma2(**GROUPED, head_dim=6, query_width=5, window=4),
    "deepseek_v2": deepseek_v2(
        **COMMON, num_heads=2, d_ff=12, num_experts=3, experts_per_token=2, expert_d_ff=6, q_lora_rank=5,
        kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3,
    ),
    "bloom": bloom(**COMMON, num_heads=2),
    "mpt": mpt(**COMMON, num_heads=2),
    "mamba": mamba(**COMMON),
    "mamba2": mamba2(**COMMON, num_heads=2, head_dim=8, state_size=4),
    "qwen3": qwen3(**GROUPED, head_dim=6),
    "qwen3_moe": qwen3_moe(**EXPERTS, expert_d_ff=6),
    "gemma3_text": gemma3_text(
        **GROUPED, head_dim=6, query_width=5, patterns=(spec.Window(size=4), spec.Full()),
        local_position=spec.Rotary(theta=5.0),
    ),
    "olmo2": olmo2(**GROUPED),
    "phi3": phi3(**GROUPED, window=4),
    "smollm3": smollm3(**GROUPED, without_rope=(1,)),
    "gpt_oss": gpt_oss(**EXPERTS, d_ff=6, window=4),
    "deepseek_v3": deepseek_v3(
        **COMMON, num_heads=2, d_ff=12, num_experts=4, experts_per_token=2, expert_d_ff=6, q_lora_rank=5,
        kv_lora_rank=4, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3, num_dense_layers=1,
        groups=spec.ExpertGroups(num_groups=2, groups_per_token=1, top_k_in_group=2),
    ),
    "bert": bert(**COMMON, num_heads=2),
    "modernbert": modernbert(**COMMON, num_heads=2, d_ff=12, patterns=(spec.Full(), spec.Window(size=4))),
    "eurobert": eurobert(**COMMON, num_heads=2, num_kv_heads=1, d_ff=12),
    "deberta-v2": deberta(**COMMON, num_heads=2, d_ff=12),
    "bert for classes": bert(**COMMON, num_heads=2, head=spec.ClassificationHead(num_classes=3), pooler=True),
    "longformer": longformer(**COMMON, num_heads=2, windows=(4, 8)),
    "big_bird": bigbird(**COMMON, num_heads=2, qkv_bias=False),
    "t5": t5(**COMMON, num_heads=2, d_ff=12, head_dim=6),
    "t5 gated": t5(**COMMON, num_heads=2, d_ff=12, num_decoder_layers=1, gated=True, tied=False),
    "marian": marian(**COMMON, num_heads=2, d_ff=12),
    "marian of two tables": marian(**COMMON, num_heads=2, d_ff=12, source_vocab_size=7, shared=False),
    "vit": vit(num_layers=2, d_model=8, num_heads=2, patch_size=2, image_size=4, num_classes=3),
}  # fmt: skip

# Files of types that transformers lacks; other families hold these models as well.
FURTHER = {
    "llada": llada(**COMMON, num_heads=2, d_ff=12),
    "Dream": dream(**GROUPED),
    "rwkv7": rwkv7(**COMMON, head_dim=4, decay_rank=2, rate_rank=3, value_rank=2, gate_rank=4),
} | {
    name: OF_FLA[name].format.keys.build(**COMMON, num_heads=2, head_dim=4, v_head_dim=6, gate="silu", d_ff=12)
    for name in ("gla", "retnet", "delta_net")
}


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """A model of each specification."""
    return {name: randomize(build(model)) for name, model in SPECS.items()}


# Of what is asked of a file, whatever its family: some models in every run, all of them in the soak.
SOME = pytest.mark.parametrize("name", every(6, SPECS))


@pytest.fixture(params=SPECS)
def name(request: pytest.FixtureRequest) -> str:
    """Each model in turn."""
    return request.param


@pytest.fixture(scope="session")
def sound_folder(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A model by name as a Hugging Face folder, written once."""

    @cache
    def write(name: str) -> Path:
        folder = tmp_path_factory.mktemp("sound")
        model = randomize(build(FURTHER[name])) if name in FURTHER else models[name]
        write_model(model, FAMILIES[name.split()[0]], folder)
        return folder

    return write


@pytest.fixture
def folder(sound_folder: Callable[[str], Path], tmp_path: Path, name: str) -> Path:
    """The model `name` as a Hugging Face folder, which a test may spoil."""
    return shutil.copytree(sound_folder(name), tmp_path / "model")
