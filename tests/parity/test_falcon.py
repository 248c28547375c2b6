"""Falcon in every form of its class: ALiBi or rotations, biases, shared keys, and norms before or beside.

With ALiBi its class has two results. The mask already holds the slopes, and attention that is written out (`eager`,
which `output_attentions` asks for, too) adds them to the scores once more. Here they are added once, as by its default,
`sdpa`.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import archetype
from tests.helpers.examples import every
from tests.helpers.published import EXACT, VOCABULARY, text
from tests.helpers.weights import distance, randomize

TOKENS = text(30)[:1]
pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")
FORMS = [
    pytest.param(
        dict(
            alibi=alibi, bias=bias, multi_query=multi_query, new_decoder_architecture=new, parallel_attn=parallel,
            num_kv_heads=kv_heads, num_ln_in_parallel_attn=norms,
        ),
        id="-".join(map(str, (alibi, bias, multi_query, new, parallel, kv_heads, norms))),
    )
    for alibi, bias, multi_query, new, parallel, kv_heads, norms in product(
        (True, False), (True, False), (False, True), (False, True), (False, True), (1, 2, 6), (1, 2)
    )
    if not (new and not parallel)  # which the class itself cannot compute
    and not (norms == 2 and parallel and not new)
    and not (not new and not multi_query and kv_heads != 6)
]  # fmt: skip


def saved(form: dict[str, Any], folder: Path) -> None:
    config = transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, **form
    )
    model = transformers.FalconForCausalLM(config)
    randomize(model)
    model.save_pretrained(folder)


def theirs(folder: Path, attention: str) -> Any:
    return transformers.FalconForCausalLM.from_pretrained(folder, attn_implementation=attention).eval()


@pytest.mark.parametrize("form", every(9, FORMS))
def test_logits_of_a_form(form: dict[str, Any], tmp_path: Path) -> None:
    saved(form, tmp_path)
    model: Any = archetype.load(tmp_path).model
    with torch.no_grad():
        expected = theirs(tmp_path, "sdpa")(TOKENS).logits
        assert distance(model(TOKENS).logits, expected) < EXACT


def test_eager_attention_adds_the_slopes_twice(tmp_path: Path) -> None:
    """Twice the slopes here are its eager logits, which are far from those of its default."""
    saved({"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}, tmp_path)
    model: Any = archetype.load(tmp_path).model
    with torch.no_grad():
        usual, eager = (theirs(tmp_path, attention)(TOKENS).logits for attention in ("sdpa", "eager"))
        assert torch.equal(theirs(tmp_path, "sdpa")(TOKENS, output_attentions=True).logits, eager)
        assert distance(eager, usual) > 0.01
        assert distance(model(TOKENS).logits, usual) < EXACT
        for block in model.blocks:
            block.mixer.score_bias.scale *= 2
        assert distance(model(TOKENS).logits, eager) < EXACT
