"""Types that are read by their files alone, as published and not as transformers writes them, every tensor random.

Each has the same answers for a whole text and for one that is read token by token from a cache, a mistake that must
show, and the same file after it is written back.
"""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, OlmoHybridConfig, OlmoHybridForCausalLM, PreTrainedModel

import archetype
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
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


Tensors = dict[str, Tensor]


def as_it_is(tensors: Tensors) -> Tensors:
    return tensors


def written(
    values: dict[str, Any], folder: Path, publish: Callable[[Tensors], Tensors] = as_it_is
) -> PreTrainedModel:
    """The model of transformers for a config.json, which is beside its tensors to the letter.

    Args:
        publish: what makes published tensors of those that transformers writes.
    """
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float()).save_pretrained(folder)
        file.write_text(json.dumps(values))
        save_file(publish(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
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
def check(
    values: dict[str, Any], mistake: Change, folder: Path, publish: Callable[[Tensors], Tensors] = as_it_is
) -> Any:
    """Compare whole texts, texts read step by step, a model with a mistake, and the file that is written back."""
    theirs = written(values, folder / "theirs", publish)
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


OLMO_HYBRID: dict[str, Any] = SIZES | {
    "architectures": ["OlmoHybridForCausalLM"], "model_type": "olmo_hybrid", "attention_bias": False,
    "hidden_act": "silu", "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_allow_neg_eigval": True, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_value_head_dim": 10, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": None}, "tie_word_embeddings": False,
}  # fmt: skip
KEYS, VALUES = 2 * 6, 4 * 10  # channels of the convolutions of queries and keys, and of values


def as_olmo_hybrid(tensors: Tensors) -> Tensors:
    """Three convolutions of their own sizes, where transformers writes thirds, and attention's norms as they are."""
    published = {}
    for name, tensor in tensors.items():
        start, _, kind = name.partition("_conv1d")
        if kind:
            joined = torch.cat([tensors[f"{start[:-1]}{part}_conv1d.weight"] for part in "qkv"])
            sizes = {"q": (0, KEYS), "k": (KEYS, 2 * KEYS), "v": (2 * KEYS, 2 * KEYS + VALUES)}
            begin, end = sizes[start[-1]]
            published[name] = joined[begin:end].clone()
        else:
            # transformers names the norms of delta layers in all layers
            name = re.sub(r"(layers\.1\.)feedforward_layer_norm", r"\1post_attention_layernorm", name)
            published[name] = tensor
    return published


@pytest.mark.parametrize("publish", [as_it_is, as_olmo_hybrid])
@pytest.mark.parametrize(
    ("changes", "position"),
    [
        ({}, "none"),
        ({"rope_parameters": None}, "rotary"),  # the class's theta, not the absence of positions
        ({"rope_parameters": ..., "rope_scaling": None, "rope_theta": None}, "none"),
        ({"rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}, "linear_allow_neg_eigval": False}, "rotary"),
        ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}, "rope_theta": 77.0}, "none"),
    ],
)
def test_olmo_hybrid(
    changes: dict[str, Any], position: str, publish: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    values = {key: value for key, value in (OLMO_HYBRID | changes).items() if value is not ...}

    def shifted(model: Any) -> None:
        """The convolution's channels one further: a mistake in where q, k and v begin."""
        weight = model.get_parameter("blocks.0.mixer.conv.weight")
        weight.copy_(weight.roll(1, 0))

    lm = check(values, shifted, tmp_path, publish)
    first, second, _ = lm.spec.layers
    assert (first.wiring.kind, second.wiring.kind) == ("pre_norm", "output_norm")
    assert second.mixer.position.kind == position and first.mixer.eps == 1e-5
    assert first.mixer.negative_eigenvalues == values["linear_allow_neg_eigval"]
    of_queries = load_file(tmp_path / "theirs" / "model.safetensors")["model.layers.0.linear_attn.q_conv1d.weight"]
    assert len(of_queries) == (KEYS if publish is as_olmo_hybrid else -(-(2 * KEYS + VALUES) // 3))


def test_convolutions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def shorter(tensors: Tensors) -> Tensors:
        name = "model.layers.0.linear_attn.v_conv1d.weight"
        return as_olmo_hybrid(tensors) | {name: as_olmo_hybrid(tensors)[name][:-1].clone()}

    folder = tmp_path / "model"
    written(OLMO_HYBRID, folder)
    tensors = load_file(folder / "model.safetensors")
    for change, message in (
        (shorter(tensors), "63 channels, which do not fit 2 key heads"),
        ({name: t for name, t in tensors.items() if "0.linear_attn.k_conv1d" not in name}, "a mixer without k_conv"),
    ):
        save_file(change, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            archetype.load(folder)
    # the class takes as many as attention has, and the file says nothing
    silent = OLMO_HYBRID | {"linear_num_key_heads": None, "num_attention_heads": 8}
    (folder / "config.json").write_text(json.dumps(silent))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="linear_num_key_heads: is missing"):
        archetype.load(folder)


def test_olmo_hybrid_7b_is_counted_as_released() -> None:
    """Of 523 tensors, as in its file, by the sizes that are the defaults of transformers' class."""
    config = OlmoHybridConfig()
    with torch.device("meta"):
        model = OlmoHybridForCausalLM(config)
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    widths = {"q": keys, "k": keys, "v": config.linear_num_value_heads * config.linear_value_head_dim}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.state_dict().items():
        start, conv, _ = name.rpartition("conv1d.weight")
        split = {f"{start}{part}_{conv}": (width, *tensor.shape[1:]) for part, width in widths.items()}
        shapes |= split if conv else {name: tuple(tensor.shape)}
    spec = read_unknown(config.to_dict(), shapes).format.spec_from(config.to_dict())
    assert len(shapes) == 523 and total_parameters(spec) == model.num_parameters() == 7_430_870_688
