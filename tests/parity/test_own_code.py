"""Models whose published code is their own, against transformers' or written-out equations, every tensor random."""

from pathlib import Path
from typing import Any

import torch
from transformers import MuseGlimmerConfig, MuseGlimmerForConditionalGeneration

from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance
from tests.helpers.zoo import drawn
from tests.parity.test_inferred_families import PROMPT, TOKENS, read, their_steps

MUSE: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 0.3, "post_norm_eps": 0.1,
    "sliding_window": 8, "output_multiplier": 0.7, "final_logit_softcapping": 2.0, "pad_token_id": None,
    "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
SEES = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}


@torch.no_grad()
def test_muse_glimmer(tmp_path: Path) -> None:
    """Queries and keys with a norm without weights, also where nothing rotates, and norms of outputs of another eps."""
    config = MuseGlimmerConfig(text_config=MUSE, vision_config=SEES, out_hidden_size=32, projector_hidden_size=8)
    drawn(MuseGlimmerForConditionalGeneration(config)).save_pretrained(tmp_path)
    theirs = MuseGlimmerForConditionalGeneration.from_pretrained(tmp_path).eval()
    lm = read(tmp_path)
    full, windowed = (lm.spec.layers[number].mixer for number in (0, 1))
    assert full.position.is_absent and full.pattern.kind == "full" and windowed.pattern.size == 8
    whole = theirs(TOKENS).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, their_steps(theirs, TOKENS)) < EXACT
    other = build(assign(lm.spec, ["layers[0].mixer.qk_norm=none"]))
    other.load_state_dict(lm.model.state_dict())  # this norm has no weights
    assert distance(other.eval()(TOKENS).logits, whole) > WRONG
