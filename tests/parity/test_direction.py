"""As in transformers, `is_decoder` and `is_causal` say whether a BERT-like class attends to later tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import archetype
from archetype.convert.infer.quirks import QUIRKS
from archetype.errors import CheckpointError
from tests.helpers.examples import every
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import write_small

KINDS = sorted(kind for kind, quirks in QUIRKS.items() if quirks.asks_is_decoder)
TOKENS = torch.arange(3, 17).view(1, 14)


def write_key(folder: Path, key: str, value: Any) -> None:
    file = folder / "config.json"
    config = {name: old for name, old in json.loads(file.read_text()).items() if name != key}
    file.write_text(json.dumps(config | ({} if value is None else {key: value})))


@torch.no_grad()
def sees_ahead(model: Any) -> bool:
    """Whether the first logits change with the last tokens."""
    return distance(model(TOKENS).logits[:, :8], model(TOKENS[:, :8]).logits) > 1e-4


@pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
@pytest.mark.parametrize("kind", every(5, KINDS))
def test_the_class_of_a_decoder_sees_ahead_unless_told(kind: str, tmp_path: Path) -> None:
    write_small(kind, tmp_path)
    assert not sees_ahead(archetype.load(tmp_path).model)
    for value, expected in ((True, False), (False, True), (None, True)):
        write_key(tmp_path, "is_decoder", value)
        assert sees_ahead(transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()) is expected
    for value in (False, None):
        write_key(tmp_path, "is_decoder", value)
        with pytest.raises(CheckpointError, match=r"is_decoder: is not true|this tensor is missing"):
            archetype.load(tmp_path)


@torch.no_grad()
def test_an_encoder_with_is_causal_sees_ahead_only_with_padding(tmp_path: Path) -> None:
    config = transformers.AlbertConfig(
        vocab_size=96, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64, pad_token_id=0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    randomize(transformers.AlbertForMaskedLM(config), 1).save_pretrained(tmp_path)

    def read() -> tuple[Tensor, Tensor]:
        model = transformers.AlbertForMaskedLM.from_pretrained(tmp_path).eval()
        tokens = torch.cat([TOKENS, TOKENS])
        mask = torch.ones_like(tokens)
        mask[1, 9:] = 0
        return model(tokens).logits[0], model(tokens, attention_mask=mask).logits[0]

    plain, padded = read()
    assert distance(archetype.load(tmp_path).model(TOKENS).logits[0], plain) < 1e-5
    write_key(tmp_path, "is_causal", True)
    causal, padded_causal = read()
    assert distance(plain, padded) < 1e-5 and distance(padded_causal, padded) < 1e-5 and distance(causal, plain) > 0.01
    with pytest.raises(CheckpointError, match="is_causal: makes an encoder causal, but only in batches without"):
        archetype.load(tmp_path)
