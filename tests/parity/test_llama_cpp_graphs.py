"""The logits of llama.cpp, where it is installed, for a file of every architecture in the table of graphs."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype import spec
from archetype.convert.gguf.choice import gguf_of
from archetype.convert.gguf.file import write_gguf
from archetype.convert.gguf.parity import outputs
from archetype.errors import ArchetypeError, CheckpointError
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.cases import case
from tests.helpers.gguf_specs import SPECS, family_of, type_of
from tests.helpers.weights import distance, randomize
from tests.parity.test_llama_cpp import MODELS

CLOSE = 1e-5
# llama.cpp has only the tanh approximation of GELU, in tables of 16 bits; it adds the norms' epsilon to the length of a
# query or key of a delta network, not 1e-6 (which Kimi K3's small model has here), and rounds the ends of YaRN's ramp,
# which gpt-oss does not
LESS = {
    **dict.fromkeys(("gpt_neox", "falcon", "phi", "gpt_bigcode", "starcoder2", "codeshell", "grok", "spark2_5"), 1e-3),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gemma3_text scaled", "gpt2", "bloom", "mpt"), 1e-3),
    **dict.fromkeys(("gemma4_text", "gemma4_text experts", "gemma_embedding"), 5e-3),
    **dict.fromkeys(("llada", "Dream", "llada_moe", "rnd1"), 5e-3),  # attention in float16
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text", "qwen3_5_text", "kimi_linear"), 5e-4),
    "gpt_oss": 5e-3,
    "kimi_k3": 5e-5,
    "minimax_m3_vl_text": 1e-2,  # flash attention, without which it selects no keys, in float16
}
# A query reads 3 pools of 4 keys and the newest keys. llama.cpp fills the place of up to 3 newest keys with keys of the
# next pool, so that it reads the same if there are 3.
QWEN4 = ("qwen4_exp_text", "qwen4_exp_text memory")
# phi3 and starcoder2 have windows of 8 tokens, which llama.cpp has not; DeepSeek-V4 has a key of each 128 tokens
LENGTHS = {"phi3": 8, "starcoder2": 8, "deepseek_v4": 300} | dict.fromkeys(QWEN4, 40)


DECODERS = [name for name, model in SPECS.items() if model.kind == "decoder"]
YARN = "{kind: yarn, factor: 4.0, original_context_length: 16}"
LLAMA_3 = (
    "{kind: llama3, factor: 4.0, low_frequency_factor: 1.0, high_frequency_factor: 4.0, original_context_length: 64}"
)
# Each is made where the model has the field, in all layers, in the first, or in the last.
EDITS = (
    *(f"layers[*].mixer.position.scaling={scaling}" for scaling in (YARN, LLAMA_3, "{kind: linear, factor: 4.0}")),
    *(f"layers[{layer}].mixer.position.scaling={YARN}" for layer in (0, -1)),
    *(f"layers[{layer}].mixer.position.theta=2000.0" for layer in ("*", 0, -1)),
    "layers[*].mixer.position.dim=4", "layers[0].mixer.position={kind: none}",
    "layers[*].mixer.bias.q=true", "layers[*].mixer.bias={q: true, k: true, v: true}", "layers[*].mixer.bias.o=true",
    "layers[*].feedforward.bias=true", "layers[*].mixer.num_kv_heads=1", "layers[0].mixer.num_kv_heads=1",
    "layers[*].mixer.head_dim=16", "layers[-1].mixer.num_heads=8", "layers[*].mixer.scale=0.3",
    "layers[*].wiring.norm.eps=0.05", "final_norm.eps=0.05", "layers[*].mixer.norm.eps=0.02", "head.tied=true",
    "head.tied=false", "head.scale=0.5", "head.softcap=2.0", "head.softcap=null", "embedding.scale=3.0",
    "layers[*].residual_scale=0.5",
    "layers[*].mixer.softcap=2.0", "layers[*].mixer.sinks=true", "layers[0].mixer.pattern={kind: window, size: 9}",
    "layers[*].mixer.qk_norm={kind: rms}", "layers[*].mixer.clip_qkv=0.5", "layers[*].mixer.conv_kernel=3",
    "layers[*].feedforward.d_ff=40", "layers[0].feedforward.d_ff=64", "layers[-1].feedforward.expert.d_ff=40",
    "layers[-1].feedforward.num_experts=6", "layers[-1].feedforward.shared.d_ff=72",
    "layers[*].feedforward.shared=null", "layers[*].feedforward.router.scale=2.5",
    "layers[*].feedforward.router.renormalize=true", "layers[*].feedforward.router.renormalize=false",
    "layers[*].feedforward.router.kind=softmax", "layers[*].feedforward.router.kind=sigmoid",
    "layers[*].feedforward.router.expert_bias=true", "layers[*].feedforward.experts_per_token=1",
    "layers[*].feedforward.groups={num_groups: 2, groups_per_token: 1, top_k_in_group: 2}",
    "layers[*].feedforward.limit=0.5", "layers[*].feedforward.activation=gelu_tanh", "vocab_size=64",
    *(
        f"layers[{layer}].{part}"
        for layer in ("*", 0, -1)
        for part in ("mixer={kind: attention, num_heads: 4, num_kv_heads: 2}", "mixer={kind: mamba}",
            "mixer={kind: mamba2, num_heads: 4}", "mixer={kind: gated_delta_net, num_heads: 4}", "mixer={kind: none}",
            "feedforward={kind: gated, d_ff: 48, activation: silu}", "feedforward={kind: none}")
    ),
)  # fmt: skip


def logits(c: Any, file: Path, name: str, tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """What llama.cpp computes for a text."""
    model = c.llama_model_load_from_file(str(file).encode(), c.llama_model_default_params())
    assert model
    settings = c.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 320, 1, 1
    settings.flash_attn_type = int(name == "minimax_m3_vl_text")
    settings.type_k = settings.type_v = 0  # float32
    context = c.llama_init_from_model(model, settings)
    batch = c.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for place, token in enumerate(tokens.tolist()):
        batch.token[place], batch.pos[place], batch.n_seq_id[place], batch.seq_id[place][0] = token, place, 1, 0
        batch.logits[place] = True
    assert c.llama_decode(context, batch) == 0
    shape = (vocab_size,)
    rows = [np.ctypeslib.as_array(c.llama_get_logits_ith(context, i), shape=shape).copy() for i in range(len(tokens))]
    c.llama_batch_free(batch)
    c.llama_free(context)
    c.llama_model_free(model)
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_logits_of_a_text(c: Any, name: str, tmp_path: Path) -> None:
    ours, file = randomize(build(SPECS[name])).eval(), tmp_path / "model.gguf"
    write_gguf(ours, family_of(name), None, file)
    tokens = torch.arange(4, 4 + LENGTHS.get(name, 20)) % 61
    theirs, expected = logits(c, file, name, tokens, 61), ours(tokens[None]).logits[0]
    if name in QWEN4:
        assert distance(theirs[15:], expected[15:]) > 0.01
        theirs, expected = theirs[2::4], expected[2::4]
    assert distance(theirs, expected) < LESS.get(name, CLOSE)
    # the control: the same text with its first two tokens in the other order
    other = ours(tokens[[1, 0, *range(2, len(tokens))]][None]).logits[0][2 :: 4 if name in QWEN4 else 1]
    theirs = theirs if name in QWEN4 else theirs[2:]
    assert distance(theirs, other) > 0.01


def edited(model: spec.ModelSpec, edit: str) -> spec.ModelSpec:
    """The model with an edit, in all layers that have the field."""
    last = model.num_layers - 1
    for layer in range(model.num_layers) if "[*]" in edit else (0,):
        with contextlib.suppress(ArchetypeError):
            model = assign(model, [edit.replace("[*]", f"[{layer}]").replace("[-1]", f"[{last}]")])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in (*DECODERS, *MODELS) if name != "minimax_m3_vl_text"])
@torch.no_grad()
def test_what_is_written_of_other_settings(c: Any, name: str, tmp_path: Path) -> None:
    """A model with any other setting is refused, or llama.cpp loads its file and computes the same.

    But MiniMax M3's blocks of keys tie in float16.
    """
    compared, usual = 0, SPECS[name] if name in SPECS else MODELS[name]
    for edit in EDITS:
        model = edited(usual, edit)
        if model == usual:
            continue
        file, ours = tmp_path / "model.gguf", randomize(build(model)).eval()
        try:
            write_gguf(ours, family_of(name), None, file)
        except CheckpointError:
            continue
        with case(edit):
            length = min(LENGTHS.get(name, 20), gguf_of(type_of(name), model).computed(model).context_length)
            tokens = torch.arange(4, 4 + length) % 61
            theirs, expected = logits(c, file, name, tokens, ours.spec.vocab_size), ours(tokens[None]).logits[0]
            step = slice(2, None, 4) if name in QWEN4 else slice(None)
            assert distance(theirs[step], expected[step]) < 10 * LESS.get(name, CLOSE)
        file.unlink()
        compared += 1
    assert compared


ENCODERS = [name for name, model in SPECS.items() if model.kind == "encoder"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_what_is_written_of_other_settings_of_encoders(c: Any, name: str, tmp_path: Path) -> None:
    compared = 0
    for edit in EDITS:
        file, model = tmp_path / "model.gguf", edited(SPECS[name], edit)
        if model == SPECS[name] or edit.startswith("vocab_size"):
            continue
        try:
            write_gguf(randomize(build(model)).eval(), family_of(name), None, file)
        except CheckpointError:
            continue
        with case(edit):
            _, hidden, theirs = outputs(file, "float32", None, ())
            assert distance(theirs, hidden) < 10 * LESS.get(name, 1e-3)
        file.unlink()
        compared += 1
    assert compared


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_vector_or_logits_of_a_text(c: Any, name: str, tmp_path: Path) -> None:
    model, file = randomize(build(SPECS[name])).eval(), tmp_path / "model.gguf"
    write_gguf(model, family_of(name), None, file)
    read, hidden, theirs = outputs(file, "float32", None, ())
    assert read.spec.num_layers == SPECS[name].num_layers
    # llama.cpp's attention over a whole text works in float16
    assert distance(theirs, hidden) < LESS.get(name, 1e-3)
    assert distance(theirs, hidden.flip(1)) > 0.01  # the control
