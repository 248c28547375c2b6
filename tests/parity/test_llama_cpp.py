"""The same greedy tokens as llama.cpp from the GGUF files that are exported, where it is installed."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype import spec
from archetype.checkpoint import gguf
from archetype.data.tokenizer import train_tokenizer
from archetype.families.bloom import bloom
from archetype.families.gemma import gemma
from archetype.families.gemma2 import gemma2
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mistral import mistral
from archetype.families.mixtral import mixtral
from archetype.families.mpt import mpt
from archetype.families.qwen2 import qwen2
from archetype.language_model import LanguageModel, export
from archetype.model import build
from tests.weights import distance, randomize

COMMON: dict[str, Any] = dict(num_layers=2, d_model=64, vocab_size=300, context_length=64)
GROUPED: dict[str, Any] = COMMON | dict(num_heads=4, num_kv_heads=2, d_ff=96)
SCALING = spec.Llama3Scaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=16
)
MODELS: dict[str, spec.Decoder] = {
    "llama": llama(**GROUPED),
    "llama tied, biases, wide heads": llama(**GROUPED, tied=True, attention_bias=True, head_dim=32),
    "llama 3": llama(**GROUPED, position=spec.Rotary(theta=5e5, scaling=SCALING)),
    "llama linear": llama(**GROUPED, position=spec.Rotary(scaling=spec.LinearScaling(factor=4.0))),
    "mistral": mistral(**GROUPED, window=32),
    "mixtral": mixtral(**GROUPED, num_experts=4),
    "qwen2": qwen2(**GROUPED),
    "gemma": gemma(**GROUPED, head_dim=32),
    "gemma2": gemma2(**GROUPED, head_dim=32, query_width=32, window=8),
    "gpt2": gpt2(**COMMON, num_heads=4),
    "bloom": bloom(**COMMON, num_heads=4),
    "mpt": mpt(**COMMON, num_heads=4),
    "mamba": mamba(**COMMON),
}
TOLERANCE = 3e-3  # of the logits: it keeps keys and values, and tables of activations, in half precision


@pytest.fixture(scope="module")
def c() -> Any:
    """Its functions, silent."""
    try:
        import llama_cpp
    except ImportError:
        pytest.skip("needs llama-cpp-python (compiles for ten minutes; pip install llama-cpp-python)")
    silent = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    llama_cpp.kept = silent
    return llama_cpp


def logits(c: Any, context: Any, tokens: list[int], start: int, vocab_size: int) -> np.ndarray:
    """Of the last token."""
    batch = c.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for place, token in enumerate(tokens):
        batch.token[place], batch.pos[place] = token, start + place
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        batch.logits[place] = place == len(tokens) - 1
    assert c.llama_decode(context, batch) == 0
    found = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), shape=(vocab_size,)).copy()
    c.llama_batch_free(batch)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens(c: Any, name: str, tmp_path: Path) -> None:
    ours = randomize(build(MODELS[name]))
    tokenizer = train_tokenizer("byte_bpe", "hello hello world, and so on " * 9, 280)
    export(LanguageModel(ours.spec, ours, tokenizer), tmp_path / "out", name.split()[0].strip(","), format="gguf")
    model = c.llama_model_load_from_file(str(tmp_path / "out" / gguf.FILE).encode(), c.llama_model_default_params())
    assert model
    settings = c.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.n_threads_batch = 64, 1, 1
    context = c.llama_init_from_model(model, settings)
    text = b"hello world, hello"
    ids = (c.llama_token * 64)()
    count = c.llama_tokenize(c.llama_model_get_vocab(model), text, len(text), ids, 64, False, True)
    assert ids[:count] == tokenizer.encode(text.decode())

    tokens = torch.randint(0, 300, (1, 14), generator=torch.Generator().manual_seed(1))
    state = ours.new_state(1)  # type: ignore[union-attr, operator]
    expected, state = ours(tokens, state)
    found = logits(c, context, tokens[0].tolist(), 0, 300)
    for step in range(12):
        wanted = expected[0, -1].detach()
        assert distance(torch.from_numpy(found), wanted) < TOLERANCE, step
        best = int(wanted.argmax())
        margin = wanted.topk(2).values.diff().abs().item() / wanted.abs().max().item()
        assert int(found.argmax()) == best or margin < TOLERANCE, step
        expected, state = ours(torch.tensor([[best]]), state)
        found = logits(c, context, [best], 14 + step, 300)
    c.llama_free(context)
    c.llama_model_free(model)
