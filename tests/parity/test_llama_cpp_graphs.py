"""The logits of llama.cpp, where it is installed, for a file of every architecture in the table of graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype.convert.gguf.file import write_gguf
from archetype.convert.gguf.parity import outputs
from archetype.models.build import build
from tests.helpers.gguf_specs import SPECS, family_of
from tests.helpers.weights import distance, randomize

CLOSE = 1e-5
# llama.cpp has only the tanh approximation of GELU, in tables of 16 bits; it adds the norms' epsilon to the length of a
# query or key of a delta network, not 1e-6 (which Kimi K3's small model has here), and rounds the ends of YaRN's ramp,
# which gpt-oss does not
LESS = {
    **dict.fromkeys(("gpt_neox", "falcon", "phi", "gpt_bigcode", "starcoder2", "codeshell", "grok", "spark2_5"), 1e-3),
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


@pytest.mark.parametrize("name", [name for name, model in SPECS.items() if model.kind == "decoder"])
@torch.no_grad()
def test_logits_of_a_text(c: Any, name: str, tmp_path: Path) -> None:
    ours, file = randomize(build(SPECS[name])).eval(), tmp_path / "model.gguf"
    write_gguf(ours, family_of(name), None, file)
    model = c.llama_model_load_from_file(str(file).encode(), c.llama_model_default_params())
    assert model
    settings = c.llama_context_default_params()
    tokens = torch.arange(4, 4 + LENGTHS.get(name, 20)) % 61
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
    rows = [np.ctypeslib.as_array(c.llama_get_logits_ith(context, i), shape=(61,)).copy() for i in range(len(tokens))]
    theirs, expected = torch.from_numpy(np.stack(rows)), ours(tokens[None]).logits[0]
    if name in QWEN4:
        assert distance(theirs[15:], expected[15:]) > 0.01
        theirs, expected = theirs[2::4], expected[2::4]
    assert distance(theirs, expected) < LESS.get(name, CLOSE)
    # the control: the same text with its first two tokens in the other order
    other = ours(tokens[[1, 0, *range(2, len(tokens))]][None]).logits[0][2 :: 4 if name in QWEN4 else 1]
    theirs = theirs if name in QWEN4 else theirs[2:]
    assert distance(theirs, other) > 0.01
    c.llama_batch_free(batch)
    c.llama_free(context)
    c.llama_model_free(model)


@pytest.mark.parametrize("name", [name for name, model in SPECS.items() if model.kind == "encoder"])
@torch.no_grad()
def test_vector_or_logits_of_a_text(c: Any, name: str, tmp_path: Path) -> None:
    model, file = randomize(build(SPECS[name])).eval(), tmp_path / "model.gguf"
    write_gguf(model, family_of(name), None, file)
    read, hidden, theirs = outputs(file, "float32", None, ())
    assert read.spec.num_layers == SPECS[name].num_layers
    # llama.cpp's attention over a whole text works in float16
    assert distance(theirs, hidden) < LESS.get(name, 1e-3)
    assert distance(theirs, hidden.flip(1)) > 0.01  # the control
