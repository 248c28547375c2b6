"""The same answers as transformers' encoders of texts and pictures, in which every tensor is random."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import BertConfig, BigBirdConfig, LongformerConfig, PreTrainedConfig, ViTConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

import archetype
from archetype.models.output import Output
from archetype.parts.pattern.blocks import BigBirdRule
from archetype.parts.pattern.spec import BigBird
from archetype.roles.pattern import MaskContext
from tests.helpers.examples import every
from tests.helpers.passes import logits_or_hidden
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

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 80, "num_labels": 3, "pad_token_id": 0,
}  # fmt: skip
PICTURE: dict[str, Any] = {"image_size": 12, "patch_size": 4, "num_channels": 3}


def bert(**changes: Any) -> BertConfig:
    return BertConfig(**(SIZES | changes))


def longformer(**changes: Any) -> LongformerConfig:
    return LongformerConfig(**(SIZES | {"attention_window": [4, 8], "pad_token_id": 1} | changes))


def big_bird(**changes: Any) -> BigBirdConfig:
    return BigBirdConfig(**(SIZES | {"attention_type": "original_full"} | changes))


def vit(**changes: Any) -> ViTConfig:
    sizes = {key: size for key, size in SIZES.items() if key not in ("vocab_size", "max_position_embeddings")}
    return ViTConfig(**(sizes | PICTURE | changes))


SPARSE = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
# The class of transformers, and its configuration.
CONFIGS: dict[str, tuple[str, Callable[[], PreTrainedConfig]]] = {
    "bert": ("BertForMaskedLM", bert),
    "bert untied": ("BertForMaskedLM", lambda: bert(tie_word_embeddings=False)),
    "bert relu eps": ("BertForMaskedLM", lambda: bert(hidden_act="relu", layer_norm_eps=0.1, type_vocab_size=5)),
    "bert pretraining": ("BertForPreTraining", bert),
    "bert classes": ("BertForSequenceClassification", bert),
    "bert bare": ("BertModel", bert),
    "longformer": ("LongformerForMaskedLM", longformer),
    "longformer untied relu": (
        "LongformerForMaskedLM", lambda: longformer(tie_word_embeddings=False, hidden_act="relu", type_vocab_size=1)
    ),
    "longformer classes": ("LongformerForSequenceClassification", longformer),
    "longformer bare": ("LongformerModel", lambda: longformer(attention_window=6, layer_norm_eps=0.1)),
    "big_bird": ("BigBirdForMaskedLM", big_bird),
    "big_bird scaled": ("BigBirdForMaskedLM", lambda: big_bird(rescale_embeddings=True, use_bias=False)),
    "big_bird untied": ("BigBirdForMaskedLM", lambda: big_bird(tie_word_embeddings=False, hidden_act="relu")),
    "big_bird classes": ("BigBirdForSequenceClassification", lambda: big_bird(hidden_act="tanh")),
    "big_bird bare": ("BigBirdModel", big_bird),
    "big_bird blocks": ("BigBirdForMaskedLM", lambda: big_bird(**SPARSE)),
    "vit": ("ViTForImageClassification", vit),
    "vit without biases": ("ViTForImageClassification", lambda: vit(qkv_bias=False, hidden_act="relu")),
    "vit eps": ("ViTForImageClassification", lambda: vit(layer_norm_eps=0.1, patch_size=6)),
    "vit bare": ("ViTModel", vit),
}  # fmt: skip


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Each configuration by name, as a folder."""

    @cache
    def publish(name: str) -> Published:
        folder = tmp_path_factory.mktemp("published")
        architecture, config = CONFIGS[name]
        randomize(getattr(transformers, architecture)(config())).save_pretrained(folder)  # type: ignore[operator]
        return Published(folder, reference(architecture, folder), archetype.load(folder))

    return publish


def reference(architecture: str, folder: Path) -> nn.Module:
    model: nn.Module = getattr(transformers, architecture).from_pretrained(folder).eval().requires_grad_(False)
    return model


TEXT, COUNTS = text(24, first=2), torch.tensor([24, 17])
TYPES = text(24, vocab_size=2)
PICTURES = torch.randn(3, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def hf_inputs(one: Published) -> dict[str, Tensor]:
    """What transformers is called with."""
    if "vit" in one.hf.config.model_type:
        return {"pixel_values": PICTURES}
    places = torch.arange(TEXT.shape[1])
    inputs: dict[str, Tensor] = {"input_ids": TEXT, "attention_mask": (places < COUNTS[:, None]).long()}
    if one.hf.config.type_vocab_size > 1:
        inputs["token_type_ids"] = TYPES
    if one.hf.config.model_type == "longformer":
        inputs["global_attention_mask"] = (places == 0).long().expand_as(TEXT)
    return inputs


def hf_output(one: Published, model: Any) -> Tensor:
    """What transformers computes, without padding."""
    output = model(**hf_inputs(one))
    name = next(key for key in ("logits", "prediction_logits", "last_hidden_state") if key in output)
    return without_padding(output[name])


def without_padding(x: Tensor) -> Tensor:
    """The vectors at tokens, of all rows one after the other; what has no positions stays as it is."""
    return torch.cat([row[:count] for row, count in zip(x, COUNTS, strict=True)]) if x.dim() == 3 and len(x) == 2 else x


def output(one: Published, model: Any) -> Output:
    """What Archetype computes."""
    result: Output = (
        model(PICTURES)
        if "vit" in one.hf.config.model_type
        else model(TEXT, COUNTS, hf_inputs(one).get("token_type_ids"))
    )
    return result


def ours(one: Published, model: Any) -> Tensor:
    """Logits or hidden vectors, without padding."""
    return without_padding(logits_or_hidden(output(one, model)))


@pytest.mark.parametrize("name", every(2, CONFIGS))
def test_answers(name: str, published: Publish) -> None:
    one = published(name)
    assert distance(ours(one, one.lm.model), hf_output(one, one.hf)) < EXACT


@pytest.mark.parametrize("name", [name for name in CONFIGS if "bare" in name])
def test_the_vector_of_the_whole(name: str, published: Publish) -> None:
    one = published(name)
    model = one.lm.model
    assert distance(model.pooled(output(one, model).hidden), one.hf(**hf_inputs(one)).pooler_output) < EXACT


@pytest.mark.parametrize("name", CONFIGS)
def test_what_every_layer_gives(name: str, published: Publish) -> None:
    one, outputs = published(name), []
    hooks = [
        block.register_forward_hook(lambda module, arguments, result: outputs.append(result))
        for block in one.lm.model.blocks
    ]
    ours(one, one.lm.model)
    for hook in hooks:
        hook.remove()
    expected = one.hf(**hf_inputs(one), output_hidden_states=True).hidden_states
    for x, theirs in zip(outputs, expected[1:], strict=True):
        assert distance(without_padding(x), without_padding(theirs[:, : x.shape[1]])) < EXACT


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "bert pretraining"])
def test_gradients(name: str, published: Publish, tmp_path: Path) -> None:
    one = published(name)
    same_gradients(one, lambda model: hf_output(one, model), lambda model: ours(one, model), tmp_path)


# Of two biases of the logits one is used, of two tasks of the first training one is read, and some build a pooler that
# nothing reads.
POOLER = ("bert.pooler.weight", "bert.pooler.bias")
LEFT_OUT = {
    **dict.fromkeys(("big_bird", "big_bird scaled", "big_bird classes", "big_bird blocks"), POOLER),
    "bert untied": ("cls.predictions.bias",),
    "big_bird untied": (*POOLER, "cls.predictions.bias"),
    "longformer untied relu": ("lm_head.bias",),
    "bert pretraining": (
        "bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", every(2, CONFIGS))
def test_what_is_exported_is_what_was_loaded(name: str, published: Publish, tmp_path: Path) -> None:
    one = published(name)
    archetype.export(one.lm, tmp_path / "exported")
    same_tensors(one.folder, tmp_path / "exported", LEFT_OUT.get(name, ()))
    architecture = "BertForMaskedLM" if name == "bert pretraining" else CONFIGS[name][0]
    again = reference(architecture, tmp_path / "exported")
    assert distance(hf_output(one, again), hf_output(one, one.hf)) < EXACT
    assert archetype.load(tmp_path / "exported").spec == one.lm.spec


def test_the_blocks_of_a_long_text(published: Publish) -> None:
    """With the same draw of blocks: transformers has another one, for each head."""
    one = published("big_bird blocks")
    tokens = text(64, first=2)
    theirs, short = (
        reference("BigBirdForMaskedLM", one.folder) for _ in range(2)
    )  # they change at the first short text
    pattern = one.lm.model.spec.layers[0].mixer.pattern
    assert isinstance(pattern, BigBird)
    for layer, part in enumerate(m for m in theirs.modules() if isinstance(m, BigBirdBlockSparseAttention)):
        rows = BigBirdRule(pattern).rows(MaskContext(causal=False, length=64, layer=layer))
        near = [{0, row - 1, row, row + 1, len(rows) - 1} for row in range(len(rows))]
        drawn = [sorted(set(rows[row]) - near[row]) for row in range(1, len(rows) - 1)]
        assert all(len(row) == 1 for row in drawn)
        part._bigbird_block_rand_mask_with_head = lambda *sizes, drawn=drawn, num_heads, **plan: (
            [torch.tensor(drawn).numpy()] * num_heads
        )
    expected, logits = theirs(tokens).logits, one.lm.model(tokens).logits
    assert theirs.bert.attention_type == "block_sparse"
    assert distance(logits, expected) < EXACT
    assert distance(logits, short(tokens).logits) > WRONG  # the draw matters


MISTAKES: list[tuple[str, str, Change]] = [
    *((name, "norms", swap("blocks.1.mixer_norm.weight", "blocks.1.feedforward_norm.weight")) for name in CONFIGS),
    *((name, "values' bias", lose("blocks.1.mixer.v.bias")) for name in ("bert", "longformer", "big_bird", "vit")),
    *((name, "head", untie) for name in ("bert", "longformer", "big_bird")),
    *((name, "logits' bias", lose("lm_head.bias")) for name in ("bert", "longformer", "big_bird", "bert untied")),
    ("bert", "token types", lose("embedding.token_type.weight")),
    ("bert", "positions", lose("embedding.position.weight")),
    ("bert classes", "pooler", lose("pooler.bias")),
    ("longformer", "global values", lose("blocks.1.mixer.v_global.bias")),
    ("longformer", "global keys", swap("blocks.0.mixer.k.weight", "blocks.0.mixer.k_global.weight")),
    ("vit", "class token", lose("embedding.class_token")),
    ("vit", "final norm", lose("final_norm.bias")),
    ("vit", "patches' bias", lose("embedding.patch.bias")),
]


@pytest.mark.parametrize(("name", "mistake", "make"), MISTAKES, ids=[f"{name}: {what}" for name, what, _ in MISTAKES])
def test_a_mistake_shows(name: str, mistake: str, make: Change, published: Publish) -> None:
    """The control: what this comparison is there to catch, it catches."""
    one = published(name)
    model = copy.deepcopy(one.lm.model)
    make(model)
    assert distance(ours(one, model), hf_output(one, one.hf)) > WRONG
