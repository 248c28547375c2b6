"""The same tokens and vectors as llama.cpp from the GGUF files that are exported, where it is installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf import file as gguf
from archetype.families.bert import bert
from archetype.families.bloom import bloom
from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.gemma import gemma
from archetype.families.gemma2 import gemma2
from archetype.families.gemma3_text import gemma3_text
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mistral import mistral
from archetype.families.mixtral import mixtral
from archetype.families.mpt import mpt
from archetype.families.qwen2 import qwen2
from archetype.families.qwen3 import qwen3
from archetype.families.qwen3_moe import qwen3_moe
from archetype.families.t5 import t5
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance, randomize

COMMON: dict[str, Any] = dict(num_layers=2, d_model=64, vocab_size=300, context_length=64)
GROUPED: dict[str, Any] = COMMON | dict(num_heads=4, num_kv_heads=2, d_ff=96)
SCALING = spec.Llama3Scaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=16
)
LATENT: dict[str, Any] = COMMON | dict(
    num_heads=4, d_ff=96, num_experts=4, experts_per_token=2, expert_d_ff=32, num_shared_experts=2,
    kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24,
)  # fmt: skip
PAIR: dict[str, Any] = COMMON | dict(num_heads=4, head_dim=16, d_ff=96)
YARN = spec.YarnScaling(factor=4.0, original_context_length=16, mscale=0.707, mscale_all_dim=0.707)
PLAIN_YARN = spec.YarnScaling(factor=4.0, original_context_length=16)
MODELS: dict[str, spec.Decoder] = {
    "llama": llama(**GROUPED),
    "llama tied, biases, wide heads": llama(**GROUPED, tied=True, attention_bias=True, head_dim=32),
    "llama 3": llama(**GROUPED, position=spec.Rotary(theta=5e5, scaling=SCALING)),
    "llama linear": llama(**GROUPED, position=spec.Rotary(scaling=spec.LinearScaling(factor=4.0))),
    "llama yarn": llama(**GROUPED, position=spec.Rotary(scaling=PLAIN_YARN)),
    "qwen2 yarn": qwen2(**GROUPED, position=spec.Rotary(theta=1e6, scaling=PLAIN_YARN)),
    "mistral": mistral(**GROUPED, window=32),
    "mixtral": mixtral(**GROUPED, num_experts=4),
    "qwen2": qwen2(**GROUPED),
    "gemma": gemma(**GROUPED, head_dim=32),
    "gemma2": gemma2(**GROUPED, head_dim=32, query_width=32, window=8),
    # its sixth layer, which sees everything, is compared in the published model (test_gguf_published.py)
    "gemma3_text": gemma3_text(**GROUPED, head_dim=32, query_width=32, window=8),
    "gemma3_text scaled": gemma3_text(
        **GROUPED,
        head_dim=32,
        query_width=32,
        window=8,
        softcap=20.0,
        position=spec.Rotary(theta=1e6, scaling=spec.LinearScaling(factor=8.0)),
    ),
    "qwen3": qwen3(**GROUPED, head_dim=24, tied=True),
    "qwen3_moe": qwen3_moe(
        **COMMON, num_heads=4, num_kv_heads=2, head_dim=24, expert_d_ff=32, num_experts=4, experts_per_token=2
    ),
    "deepseek_v2": deepseek_v2(**LATENT, q_lora_rank=24, router_scale=2.0, position=spec.Rotary(interleaved=True)),
    "deepseek_v2 lite, yarn": deepseek_v2(**LATENT, position=spec.Rotary(interleaved=True, scaling=YARN)),
    "deepseek_v2 tied, all dense but one": deepseek_v2(
        **LATENT | {"num_layers": 3}, num_dense_layers=2, tied=True, position=spec.Rotary(theta=5e5, interleaved=True)
    ),
    "gpt2": gpt2(**COMMON, num_heads=4),
    "bloom": bloom(**COMMON, num_heads=4),
    "mpt": mpt(**COMMON, num_heads=4),
    "mamba": mamba(**COMMON),
}
TOLERANCE = 3e-3  # of the logits: it keeps keys and values, and tables of activations, in half precision


def run(c: Any, function: Any, context: Any, tokens: list[int], start: int = 0, every: bool = False) -> None:
    """Have it compute what follows the last token, or every one."""
    batch = c.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for place, token in enumerate(tokens):
        batch.token[place], batch.pos[place] = token, start + place
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
        batch.logits[place] = every or place == len(tokens) - 1
    assert function(context, batch) == 0
    c.llama_batch_free(batch)


def logits(c: Any, context: Any, tokens: list[int], start: int, vocab_size: int) -> np.ndarray:
    """Of the last token."""
    run(c, c.llama_decode, context, tokens, start)
    return np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), shape=(vocab_size,)).copy()


def opened(c: Any, model: spec.ModelSpec, family: str, folder: Path, **settings: Any) -> tuple[Any, Any, Any, Any]:
    """A random model as a file, and the same read by both: ours with its tokenizer, theirs with a context."""
    ours = randomize(build(model))
    tokenizer = train_tokenizer("byte_bpe", "hello hello world, and so on " * 9, 280)
    export(LanguageModel(ours.spec, ours, tokenizer), folder, family, format="gguf")
    theirs = c.llama_model_load_from_file(str(folder / gguf.FILE).encode(), c.llama_model_default_params())
    assert theirs
    parameters = c.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads, parameters.n_threads_batch = 64, 1, 1
    for key, value in settings.items():
        setattr(parameters, key, value)
    return ours, tokenizer, theirs, c.llama_init_from_model(theirs, parameters)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens(c: Any, name: str, tmp_path: Path) -> None:
    ours, tokenizer, model, context = opened(c, MODELS[name], name.split()[0].strip(","), tmp_path / "out")
    text = b"hello world, hello"
    ids = (c.llama_token * 64)()
    count = c.llama_tokenize(c.llama_model_get_vocab(model), text, len(text), ids, 64, False, True)
    assert ids[:count] == tokenizer.encode(text.decode())

    tokens = torch.randint(0, 300, (1, 14), generator=torch.Generator().manual_seed(1))
    state = ours.new_state(1)  # type: ignore[union-attr, operator]
    step_logits, state = forward_step(ours, tokens, state)
    theirs = logits(c, context, tokens[0].tolist(), 0, 300)
    for step in range(12):
        expected = step_logits[0, -1].detach()
        assert distance(torch.from_numpy(theirs), expected) < TOLERANCE, step
        best = int(expected.argmax())
        margin = expected.topk(2).values.diff().abs().item() / expected.abs().max().item()
        assert int(theirs.argmax()) == best or margin < TOLERANCE, step
        step_logits, state = forward_step(ours, torch.tensor([[best]]), state)
        theirs = logits(c, context, [best], 14 + step, 300)
    c.llama_free(context)
    c.llama_model_free(model)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_vectors_of_texts(c: Any, activation: spec.Activation, tmp_path: Path) -> None:
    encoder = bert(**COMMON, num_heads=4, head=spec.NoHead(), pooler=True, activation=activation)
    ours, _, model, context = opened(c, encoder, "bert", tmp_path / "out", embeddings=True)
    assert c.llama_pooling_type(context) == c.LLAMA_POOLING_TYPE_MEAN
    tokens = torch.randint(0, 300, (1, 21), generator=torch.Generator().manual_seed(1))
    run(c, c.llama_decode, context, tokens[0].tolist(), every=True)
    theirs = torch.from_numpy(np.ctypeslib.as_array(c.llama_get_embeddings_seq(context, 0), shape=(64,)).copy())
    hidden = ours(tokens).hidden[0].detach()
    assert distance(theirs, hidden.mean(0)) < TOLERANCE
    assert distance(theirs, hidden[0]) > TOLERANCE  # the control: another way to make one vector of them
    c.llama_free(context)
    c.llama_model_free(model)


PAIRS: dict[str, spec.EncoderDecoder] = {
    "t5": t5(**PAIR),
    "t5 v1.1": t5(**PAIR, gated=True, tied=False),
    "t5 wide heads, few buckets": t5(**PAIR | {"head_dim": 24}, num_buckets=16),
    "t5 deeper encoder": t5(**PAIR, num_decoder_layers=1, tied=False, scaled=True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_logits_and_greedy_tokens_of_targets(c: Any, name: str, tmp_path: Path) -> None:
    ours, tokenizer, model, context = opened(c, PAIRS[name], "t5", tmp_path / "out")
    assert c.llama_model_has_encoder(model) and c.llama_model_has_decoder(model)
    token = c.llama_model_decoder_start_token(model)
    assert token == tokenizer.eos[0]
    source = torch.randint(0, 300, (1, 40), generator=torch.Generator().manual_seed(1))
    run(c, c.llama_encode, context, source[0].tolist(), every=True)
    state = ours.new_state(source)
    for step in range(12):
        theirs = logits(c, context, [token], step, 300)
        step_logits, state = forward_step(ours, torch.tensor([[token]]), state)
        expected = step_logits[0, -1].detach()
        assert distance(torch.from_numpy(theirs), expected) < TOLERANCE, step
        token = int(expected.argmax())
        margin = expected.topk(2).values.diff().abs().item() / expected.abs().max().item()
        assert int(theirs.argmax()) == token or margin < TOLERANCE, step
    c.llama_free(context)
    c.llama_model_free(model)
