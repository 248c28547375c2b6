"""Decoders published without a head, and those whose positions see later ones: transformers' vectors, both ways.

Every registered type has one small model of each. What `is_causal` says is obeyed, or refused at that key.
"""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import archetype
from archetype import families
from archetype.api.language_model import LanguageModel
from archetype.errors import CheckpointError, SpecError, UnreadKeys
from archetype.estimate.report import total_parameters
from archetype.models.encoder.module import Encoder
from archetype.tokenizers import train_tokenizer
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance
from tests.helpers.zoo import COUNTS, IS_TOKEN, ROWS, TASKS, Task, write_small

TYPES = [kind for kind, family in families.published().items() if family.decodes and kind in TASKS["causal"].types]


def vectors(model: Any) -> Tensor:
    output = model(input_ids=ROWS * IS_TOKEN, attention_mask=IS_TOKEN.long(), use_cache=False)
    return output.last_hidden_state[IS_TOKEN]  # type: ignore[no-any-return]


def our_vectors(model: Any) -> Tensor:
    return model(ROWS, num_tokens=COUNTS).hidden[IS_TOKEN]  # type: ignore[no-any-return]


def task(**sizes: Any) -> Task:
    sizes = {"tie_word_embeddings": False} | sizes
    return replace(TASKS["causal"], auto=transformers.AutoModel, theirs=vectors, ours=our_vectors, sizes=sizes)


def same_vectors(folder: Path, theirs: Tensor) -> LanguageModel:
    """Load, compare, count, write back, and compare again."""
    lm = archetype.load(folder)
    with torch.no_grad():
        assert distance(our_vectors(lm.model), theirs) < EXACT
        assert sum(p.numel() for p in lm.model.parameters()) == total_parameters(lm.spec)
        archetype.export(lm, folder.parent / "written")
        again = transformers.AutoModel.from_pretrained(folder.parent / "written").eval()
        assert distance(vectors(again), theirs) < EXACT
        assert archetype.load(folder.parent / "written").spec == lm.spec
        next(p for name, p in lm.model.named_parameters() if name.startswith("blocks.0.")).zero_()
        assert distance(our_vectors(lm.model), theirs) > WRONG
    return lm


@pytest.mark.parametrize("kind", every(8, TYPES))
def test_the_vectors_of_a_type(kind: str, tmp_path: Path) -> None:
    theirs = write_small(kind, tmp_path / "theirs", task())
    lm = same_vectors(tmp_path / "theirs", theirs)
    assert lm.spec.head.is_absent
    assert json.loads((tmp_path / "written/config.json").read_text()).get("is_causal", True)


@pytest.mark.parametrize("kind", every(4, TYPES))
def test_positions_that_see_later_ones(kind: str, tmp_path: Path) -> None:
    """An encoder of the same layers; or the class ignores the key, which is named; or it is refused at the key."""
    usual = write_small(kind, tmp_path / "usual", task(sliding_window=None))
    theirs = write_small(kind, tmp_path / "theirs", task(sliding_window=None, is_causal=False))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            lm = same_vectors(tmp_path / "theirs", theirs)
        except CheckpointError as error:
            assert kind not in BOTH_WAYS and str(error).startswith(f"{tmp_path / 'theirs/config.json'}: is_causal: ")
            return
    ignored = any(one.category is UnreadKeys and "reads is_causal" in str(one.message) for one in told)
    assert ignored == torch.equal(usual, theirs)
    assert isinstance(lm.model, Encoder) != ignored and ignored == (kind not in BOTH_WAYS)


BOTH_WAYS = ("gpt2", "llama", "mixtral", "qwen2", "gemma", "qwen3", "qwen3_moe", "olmo2", "phi3", "smollm3")


PINNED = {
    "intfloat__e5-mistral-7b-instruct": ("decoder", "none", 7_110_660_096),
    "Alibaba-NLP__gte-Qwen2-7B-instruct": ("encoder", "language_model", 7_612_620_288),
    "Qwen__Qwen3-Embedding-8B": ("decoder", "language_model", 8_188_515_328),
}


@pytest.mark.parametrize("name", PINNED)
def test_a_pinned_configuration_is_read_costed_and_written(name: str, shared: Path) -> None:
    values = json.loads((shared / f"published/configs/{name}.json").read_text())
    family = families.family_of(values)
    assert family is not None
    model = family.format.spec_from(values)
    assert (model.kind, model.head.kind, total_parameters(model)) == PINNED[name]
    written = family.format.config_for(model)
    said = ("architectures", "is_causal")
    assert {key: written.get(key) for key in said} == {key: values.get(key) for key in said}


MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


@pytest.mark.parametrize("sizes", [{}, {"is_causal": False}], ids=["decoder", "encoder"])
def test_embed_pools_the_last_token_as_modules_say(sizes: dict[str, Any], tmp_path: Path) -> None:
    write_small("qwen2", tmp_path, task(**sizes))
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    lm = archetype.load(tmp_path)
    lm.tokenizer = train_tokenizer("bytes", "", None)  # for ids alone
    texts = [row[:count].tolist() for row, count in zip(ROWS, COUNTS, strict=True)]
    theirs = transformers.AutoModel.from_pretrained(tmp_path).eval()
    width = max(map(len, texts))
    padded_left = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    mask = torch.arange(width) >= width - torch.tensor([[len(text)] for text in texts])
    with torch.no_grad():
        rows = [theirs(torch.tensor([text])).last_hidden_state[0, -1] for text in texts]
        last = theirs(padded_left, attention_mask=mask.long()).last_hidden_state[:, -1]  # as sentence-transformers pads
    assert distance(last, torch.stack(rows)) < EXACT
    expected = torch.nn.functional.normalize(torch.stack(rows), dim=-1)
    assert distance(lm.embed(texts), expected) < EXACT
    assert distance(lm.embed(texts, "mean"), expected) > WRONG
    with pytest.raises(SpecError, match="cannot do this"):
        lm.score("a")
