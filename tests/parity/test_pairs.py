"""The same logits as transformers' encoder-decoders, in which every tensor is random."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import MarianConfig, PreTrainedConfig, T5Config

import archetype
from tests.helpers.examples import every
from tests.helpers.passes import forward_step, taught
from tests.helpers.published import (
    EXACT,
    VOCABULARY,
    WRONG,
    Change,
    Publish,
    Published,
    lose,
    same_gradients,
    same_tensors,
    swap,
    text,
    untie,
)
from tests.helpers.weights import distance, randomize


def t5(**changes: Any) -> T5Config:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 44, "num_layers": 2, "num_heads": 4}
    return T5Config(**(sizes | {"pad_token_id": 0, "decoder_start_token_id": 0} | changes))


def marian(**changes: Any) -> MarianConfig:
    sides = {
        f"{side}_{key}": size for side in ("encoder", "decoder")
        for key, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 44))
    }  # fmt: skip
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "pad_token_id": 0, "decoder_start_token_id": 0}
    return MarianConfig(**(sizes | sides | {"max_position_embeddings": 40} | changes))


NEW = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "t5": t5,
    "t5 v1.1": lambda: t5(**NEW),
    "t5 gated silu": lambda: t5(feed_forward_proj="gated-silu", layer_norm_epsilon=0.1),
    "t5 deeper decoder": lambda: t5(num_decoder_layers=3, d_kv=6, feed_forward_proj="gelu"),
    "t5 deeper encoder": lambda: t5(num_layers=3, num_decoder_layers=1, num_heads=2),
    "t5 buckets": lambda: t5(relative_attention_num_buckets=8, relative_attention_max_distance=12),
    "marian": marian,
    "marian scaled": lambda: marian(scale_embedding=True, activation_function="swish"),
    "marian two tables": lambda: marian(share_encoder_decoder_embeddings=False),
    "marian two vocabularies": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=47),
    "marian unequal": lambda: marian(
        decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=20, activation_function="relu"
    ),
}


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Each configuration by name, as a folder."""

    @cache
    def publish(name: str) -> Published:
        return written(name, tmp_path_factory.mktemp("published"))

    return publish


def written(name: str, folder: Path) -> Published:
    config = CONFIGS[name]()
    model = kind(config.model_type)(config)
    if name == "t5 v1.1":
        # transformers would tie what Google's files have twice
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
        model.all_tied_weights_keys.pop("lm_head.weight")
        model.config.tie_word_embeddings = False
    positions = {key: tensor.clone() for key, tensor in model.state_dict().items() if "embed_positions" in key}
    randomize(model)
    model.load_state_dict(positions, strict=False)  # positions are computed, whatever a file has
    model.save_pretrained(folder)
    return Published(folder, reference(folder, config.model_type), archetype.load(folder))


def kind(model_type: str) -> Any:
    return {"t5": transformers.T5ForConditionalGeneration, "marian": transformers.MarianMTModel}[model_type]


def reference(folder: Path, model_type: str) -> nn.Module:
    model: nn.Module = kind(model_type).from_pretrained(folder).eval().requires_grad_(False)
    return model


SOURCE, COUNTS, TARGET = text(19, first=2), torch.tensor([19, 11]), text(14, vocab_size=47, first=2)
MASK = (torch.arange(19) < COUNTS[:, None]).long()


def theirs(model: Any) -> Any:
    return model(input_ids=SOURCE, attention_mask=MASK, decoder_input_ids=TARGET, output_hidden_states=True)


def ours(model: Any) -> Tensor:
    return taught(model, SOURCE, TARGET, COUNTS)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits(name: str, published: Publish) -> None:
    one = published(name)
    assert distance(ours(one.lm.model), theirs(one.hf).logits) < EXACT


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_with_a_state(name: str, published: Publish) -> None:
    one = published(name)
    expected = theirs(one.hf).logits
    state = one.lm.model.new_state(SOURCE, COUNTS)
    for start, end in ((0, 7), (7, 8), (8, 9), (9, 14)):
        logits, state = forward_step(one.lm.model, TARGET[:, start:end], state)
        assert distance(logits, expected[:, start:end]) < EXACT


@pytest.mark.parametrize("name", CONFIGS)
def test_what_every_layer_gives(name: str, published: Publish) -> None:
    one = published(name)
    outputs: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}
    hooks = [
        block.register_forward_hook(lambda module, arguments, result, side=side: outputs[side].append(result))
        for side in outputs for block in getattr(one.lm.model, side).blocks
    ]  # fmt: skip
    ours(one.lm.model)
    for hook in hooks:
        hook.remove()
    expected = theirs(one.hf)
    # the last of T5's states is after the final norm
    last = -1 if name.startswith("t5") else None
    for layer, state in zip(outputs["encoder"][:last], expected.encoder_hidden_states[1:][:last], strict=True):
        for row, count in enumerate(COUNTS):
            assert distance(layer[row, :count], state[row, :count]) < EXACT
    for layer, state in zip(outputs["decoder"][:last], expected.decoder_hidden_states[1:][:last], strict=True):
        assert distance(layer, state) < EXACT


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients(name: str, published: Publish, tmp_path: Path) -> None:
    same_gradients(published(name), lambda model: theirs(model).logits, ours, tmp_path)


@pytest.mark.parametrize("name", every(2, CONFIGS))
def test_what_is_exported_is_what_was_loaded(name: str, published: Publish, tmp_path: Path) -> None:
    one = published(name)
    archetype.export(one.lm, tmp_path / "exported")
    same_tensors(one.folder, tmp_path / "exported")
    again = reference(tmp_path / "exported", name.split()[0])
    assert distance(theirs(again).logits, theirs(one.hf).logits) < EXACT
    assert archetype.load(tmp_path / "exported").spec == one.lm.spec


@pytest.mark.parametrize("name", every(3, CONFIGS))
def test_greedy_texts(name: str, published: Publish) -> None:
    """Written token by token with a state, by both."""
    one = published(name)
    start = one.hf.config.decoder_start_token_id
    expected = one.hf.generate(
        input_ids=SOURCE, attention_mask=MASK, max_new_tokens=12, do_sample=False, num_beams=1, eos_token_id=None,
        forced_eos_token_id=None, use_cache=False,  # its cache has as many layers as the encoder
    )  # fmt: skip
    state, tokens = one.lm.model.new_state(SOURCE, COUNTS), torch.full((2, 1), start)
    for _ in range(12):
        logits, state = forward_step(one.lm.model, tokens[:, -1:], state)
        if name.startswith("marian"):
            logits[..., 0] = -torch.inf  # transformers never writes Marian's padding
        tokens = torch.cat((tokens, logits[:, -1:].argmax(-1)), dim=1)
    assert tokens.tolist() == expected.tolist()


BOTH = ("t5", "marian")
ENCODER, DECODER = "encoder.blocks.1", "decoder.blocks.1"
MISTAKES: list[tuple[str, str, Change]] = [
    *((name, "norms", swap(f"{DECODER}.mixer_norm.weight", f"{DECODER}.cross_norm.weight")) for name in BOTH),
    *((name, "head", untie) for name in BOTH),
    *((name, "cross and self", swap(f"{DECODER}.mixer.v.weight", f"{DECODER}.cross.v.weight")) for name in
      ("t5 v1.1", "marian scaled")),
    ("t5", "encoder's distances", lose("encoder.position_bias.weight")),
    ("t5", "decoder's distances", lose("decoder.position_bias.weight")),
    ("t5 v1.1", "gate and up", swap(f"{ENCODER}.feedforward.gate.weight", f"{ENCODER}.feedforward.up.weight")),
    ("marian", "values' bias", lose(f"{ENCODER}.mixer.v.bias")),
    ("marian", "logits' bias", lose("lm_head.bias")),
    ("marian two tables", "tables", swap("embedding.token.weight", "source_embedding.token.weight")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake", "make"), MISTAKES, ids=[f"{name}: {what}" for name, what, _ in MISTAKES])
def test_a_mistake_shows(name: str, mistake: str, make: Change, published: Publish) -> None:
    """The control: what this comparison is there to catch, it catches."""
    one = published(name)
    model = copy.deepcopy(one.lm.model)
    make(model)
    assert distance(ours(model), theirs(one.hf).logits) > WRONG
