"""Types that are read by their files alone, as published and not as transformers writes them, every tensor random.

Each has the same answers for a whole text and for one that is read token by token from a cache, a mistake that must
show, and the same file after it is written back.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import archetype
from archetype.estimate.report import total_parameters
from archetype.hf.cache import NAME
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, Change, same_tensors, swap
from tests.helpers.weights import distance
from tests.helpers.zoo import drawn

TOKENS = torch.cat((torch.arange(4, 61), torch.arange(4, 24)))[None] % 61
PROMPT = 9  # tokens that are read at once, before those that are read one by one
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def written(values: dict[str, Any], folder: Path) -> PreTrainedModel:
    """The model of transformers for a config.json, which is beside its tensors to the letter."""
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float()).save_pretrained(folder)
        file.write_text(json.dumps(values))
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def their_steps(model: Any, tokens: Tensor) -> Tensor:
    """The logits of a prompt, and of each further token with the cache that is there."""
    output = model(tokens[:, :PROMPT], use_cache=True)
    logits = [output.logits]
    for position in range(PROMPT, tokens.shape[1]):
        output = model(tokens[:, position : position + 1], use_cache=True, **{NAME: output[NAME]})
        logits.append(output.logits)
    return torch.cat(logits, 1)


def read(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return archetype.load(folder, dtype="float32")


@torch.no_grad()
def check(values: dict[str, Any], mistake: Change, folder: Path) -> Any:
    """Compare whole texts, texts read step by step, a model with a mistake, and the file that is written back."""
    theirs = written(values, folder / "theirs")
    lm = read(folder / "theirs")
    assert lm.family is not None and lm.family.reading is not None and not lm.family.reading.unknown
    assert sum(parameter.numel() for parameter in lm.model.parameters()) == total_parameters(lm.spec)
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    archetype.export(lm, folder / "written")
    same_tensors(folder / "theirs", folder / "written")
    assert json.loads((folder / "written" / "config.json").read_text()) == values
    mistake(lm.model)
    assert distance(lm.model(TOKENS).logits, whole) > WRONG
    return read(folder / "theirs")


EXAONE: dict[str, Any] = SIZES | {
    "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "activation_function": "silu",
    "attention_dropout": 0.0, "embed_dropout": 0.0, "head_dim": 8, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-3, "num_layers": 3, "rope_scaling": None, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.41.0", "use_cache": True,
}  # fmt: skip
LLAMA3 = {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
    "rope_type": "llama3",
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": LLAMA3, "rope_theta": 1000.0, "tie_word_embeddings": True, "transformers_version": "4.43.1"},
        {"head_dim": 12, "attention_bias": True, "mlp_bias": True},
    ],
    ids=["3.0", "3.5", "with biases"],
)
def test_exaone(changes: dict[str, Any], tmp_path: Path) -> None:
    """Names of GPT-2 around Llama's computation: RMSNorm, though the key of its epsilon names the other norm."""
    mistake = swap("blocks.1.feedforward.gate.weight", "blocks.1.feedforward.up.weight")  # c_fc_0 is the gate
    lm = check(EXAONE | changes, mistake, tmp_path)
    norms = {lm.spec.final_norm.kind, *(block.wiring.norm.kind for block in lm.spec.layers)}
    assert norms == {"rms"} and lm.spec.final_norm.eps == 1e-3
    assert "norm_kind" not in lm.family.reading.alternatives
