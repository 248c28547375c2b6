"""Parts of a network whose output is added after the next layer, LongCat-Flash, and its n-grams: random tensors."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import archetype
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.report import total_parameters
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, same_tensors, swap
from tests.helpers.specs import GATED, block, decoder
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import TEXT, write_small
from tests.parity.test_inferred_families import SIZES, check, read, written

LONGCAT: dict[str, Any] = SIZES | {
    "architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash", "num_layers": 2,
    "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "head_dim": 4, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "n_routed_experts": 4,
    "moe_topk": 2, "routed_scaling_factor": 1.5, "rms_norm_eps": 1e-3, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "attention_bias": False,
}  # fmt: skip


def test_longcat_has_its_experts_across_two_mixers(tmp_path: Path) -> None:
    """Its layers are two of ours each: the experts of the first read with its network, and are added after the second.

    Without idle experts, for which transformers writes matrices that it never uses.
    """
    mistake = swap("blocks.0.feedforward.parts.1.experts.gate", "blocks.2.feedforward.parts.1.experts.gate")
    lm = check(LONGCAT | {"zero_expert_num": 0}, mistake, tmp_path)
    assert [block.feedforward.delays_output for block in lm.spec.layers] == [True, False] * 2
    first = lm.spec.layers[0]
    assert first.mixer.norm.eps == 1e-6 and first.wiring.norm.eps == 1e-3
    assert lm.spec.layers[0].feedforward.parts[1].router.scale == 1.5


@torch.no_grad()
def test_idle_experts_have_no_matrices(tmp_path: Path) -> None:
    """As published, files have those of the others alone, which transformers 5.24 cannot load."""
    expected = write_small("longcat_flash", tmp_path / "theirs")
    whole = read(tmp_path / "theirs")
    assert distance(whole.model(TEXT).logits, expected) < EXACT
    parts = [block.feedforward.parts[1] for block in whole.spec.layers if block.feedforward.delays_output]
    assert [(part.num_experts, part.idle) for part in parts] == [(4, 3)] * 2
    file = tmp_path / "theirs" / "model.safetensors"
    published = {name: x for name, x in load_file(file).items() if not re.search(r"experts\.[456]\.", name)}
    save_file(published, file, {"format": "pt"})
    lm = read(tmp_path / "theirs")
    assert torch.equal(lm.model(TEXT).logits, whole.model(TEXT).logits)
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "theirs", tmp_path / "written")
    lm.model.blocks[0].feedforward.parts[1].correction.zero_()  # by which idle experts are chosen as well
    lm.model.blocks[0].feedforward.parts[1].correction[4:] = 9.0
    assert distance(lm.model(TEXT).logits, expected) > WRONG


TWO: dict[str, Any] = {"kind": "together", "parts": [GATED, GATED | {"d_ff": 12}], "delayed": [False, True]}


@torch.no_grad()
def test_before_a_layer_that_adds_nothing_a_delay_changes_nothing() -> None:
    """With the factor of the outputs of its own layer."""
    scaled = {"residual_scale": 0.5}
    late = randomize(build(decoder(block(feedforward=TWO, **scaled), block()))).double()
    now = build(decoder(block(feedforward=TWO | {"delayed": None}, **scaled), block())).double().eval()
    now.load_state_dict(late.state_dict())
    tokens = TEXT % 31
    assert distance(late(tokens).logits, now(tokens).logits) > WRONG
    for model in (late, now):
        model.blocks[1].mixer.o.weight.zero_()
        model.blocks[1].feedforward.down.weight.zero_()
    assert distance(late(tokens).logits, now(tokens).logits) < 1e-12


@pytest.mark.parametrize(
    ("layers", "changes", "message"),
    [
        ([block(), block(feedforward=TWO)], {}, "delayed: there is no next layer"),
        ([block(feedforward=TWO | {"delayed": [True, True]}), block()], {}, "delayed: must have a value for each part"),
        ([block(feedforward=TWO | {"delayed": [True]}), block()], {}, "delayed: must have a value for each part"),
        (
            [block(feedforward=TWO), block()],
            {"residual": "streams"},
            "delayed: delayed outputs need a plain residual sum",
        ),
        (
            [block(feedforward=TWO, wiring={"kind": "post_norm", "norm": "rms"}), block()],
            {},
            "need a plain residual sum",
        ),
    ],
)
def test_where_nothing_can_be_added_later(layers: list[Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        decoder(*layers, **changes)


SIZES_OF_NGRAMS = {"ngram_vocab_size_ratio": 2, "emb_neighbor_num": 4, "emb_split_num": 2}
END = 2


def token_vectors(tensors: dict[str, Tensor], text: list[int]) -> Tensor:
    """The mean of a token's vector and those of the n-grams that end at it, by the model's description (2601.21204)."""
    rows = []
    for position, token in enumerate(text):
        earlier: list[int] = []
        for other in reversed(text[:position]):
            if other == END:
                break
            earlier.append(other)
        terms = [tensors["model.embed_tokens.weight"][token]]
        for index in range(6):
            size = 2 * 61 + 2 * index + 1
            length = 2 + index // 2
            value = sum(61**back * other for back, other in enumerate([token, *earlier[: length - 1]]))
            vector = tensors[f"model.ngram_embeddings.embedders.{index}.weight"][value % size]
            terms.append(tensors[f"model.ngram_embeddings.post_projs.{index}.weight"] @ vector)
        rows.append(torch.stack(terms).mean(0))
    return torch.stack(rows)[None]


@torch.no_grad()
def test_longcat_lite_adds_vectors_of_ngrams(tmp_path: Path) -> None:
    """Transformers lacks its class: its layers read token vectors that are computed by hand."""
    theirs, generator = written(LONGCAT | {"zero_expert_num": 0}, tmp_path), torch.Generator().manual_seed(1)
    tensors = load_file(tmp_path / "model.safetensors")
    for index in range(6):
        table, matrix = (f"model.ngram_embeddings.{name}.{index}.weight" for name in ("embedders", "post_projs"))
        tensors[table] = torch.randn(2 * 61 + 2 * index + 1, 5, generator=generator)
        tensors[matrix] = torch.randn(32, 5, generator=generator) * 0.3
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    own = {"model_type": "longcat_flash_ngram", "architectures": ["LongcatFlashNgramForCausalLM"]}
    values = LONGCAT | SIZES_OF_NGRAMS | own | {"zero_expert_num": 0, "eos_token_id": END}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = archetype.load(tmp_path, dtype="float32", accept_unproved=True)
    text = [5, 9, END, 7, 7, 3, 60, END, END, 4, 8, 9, 10, 11, 5, 9]
    tokens = torch.tensor([text])
    expected = theirs(inputs_embeds=token_vectors(tensors, text), use_cache=False).logits
    assert distance(lm.model(tokens).logits, expected) < EXACT
    assert distance(in_chunks(lm.model, tokens, lm.model.new_state(1, 16), [3, 4, 5, 8, 13]), expected) < EXACT
    assert sum(parameter.numel() for parameter in lm.model.parameters()) == total_parameters(lm.spec)
    assert [block.weights_of for block in lm.spec.layers] == [None] * 5
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path, tmp_path / "written")
    other = build(assign(lm.spec, ["layers[0].feedforward.boundary=0"]))
    other.load_state_dict(lm.model.state_dict())
    assert distance(other.eval()(tokens).logits, expected) > WRONG
    del tensors["model.ngram_embeddings.post_projs.5.weight"]
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    with pytest.raises(CheckpointError, match="needs n-gram tables whose number differs from ngram_vocab_size_ratio"):
        read_unknown(values, shapes)
    with pytest.raises(CheckpointError, match="eos_token_id: n-grams end at a single token, but this is \\[2, 3\\]"):
        read_unknown(values | {"eos_token_id": [2, 3]}, shapes)
