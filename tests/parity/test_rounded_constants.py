"""Constants that a class rounds to bfloat16: Gemma's factor of token vectors, Falcon's slopes of ALiBi."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import archetype
from archetype.nn.context import ForwardContext
from tests.helpers.published import EXACT, VOCABULARY, text
from tests.helpers.weights import distance, randomize

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 12,
    "num_key_value_heads": 1, "intermediate_size": 32,
}  # fmt: skip
GEMMAS = {
    "gemma": ("GemmaForCausalLM", transformers.GemmaConfig(**SIZES)),
    "gemma2": ("Gemma2ForCausalLM", transformers.Gemma2Config(**SIZES)),
    "gemma3_text": ("Gemma3ForCausalLM", transformers.Gemma3TextConfig(**SIZES)),
    "vaultgemma": ("VaultGemmaForCausalLM", transformers.VaultGemmaConfig(**SIZES)),
}
pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.Notice")


def saved(architecture: str, config: Any, folder: Path) -> Any:
    model = getattr(transformers, architecture)(config)
    randomize(model)
    model.tie_weights()
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("name", GEMMAS)
def test_gemmas_token_vectors_in_bfloat16_are_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    """sqrt(24) is 4.899, and 4.906 in bfloat16."""
    architecture, config = GEMMAS[name]
    saved(architecture, config, tmp_path)
    theirs = getattr(transformers, architecture).from_pretrained(tmp_path, dtype=torch.bfloat16)
    model: Any = archetype.load(tmp_path, dtype="bfloat16").model
    tokens = text(40)

    def ours() -> Tensor:
        vectors: Tensor = model.embedding(tokens, ForwardContext.of(tokens))
        return vectors

    with torch.no_grad():
        expected = theirs.get_input_embeddings()(tokens)
        assert ours().dtype == expected.dtype == torch.bfloat16
        assert torch.equal(ours(), expected)
        model.embedding.round_scale = False
        assert not torch.equal(ours(), expected)  # the control


@pytest.fixture(scope="module")
def falcon(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """With six heads, whose slopes have no short form, and scores that are large beside what is rounded."""
    folder = tmp_path_factory.mktemp("falcon")
    config = transformers.FalconConfig(
        vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, alibi=True,
        multi_query=False, parallel_attn=False,
    )  # fmt: skip
    return folder, saved("FalconForCausalLM", config, folder)


def test_falcons_slopes_are_rounded_at_every_position(falcon: tuple[Path, Any]) -> None:
    folder, theirs = falcon
    lm = archetype.load(folder)
    tokens = text(300)  # from 257 on positions are rounded, too
    model: Any = lm.model
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert distance(model(tokens).logits, expected) < EXACT
        state, logits = model.new_state(2, 300), []
        for piece in tokens.split([280, 1, 1, 18], dim=1):
            output = model(piece, state)
            state = output.state
            logits.append(output.logits)
        assert distance(torch.cat(logits, dim=1), expected) < EXACT
        for block in model.blocks:
            bias = block.mixer.score_bias
            bias.rounded, bias.slopes = False, [bias.scale * slope for slope in bias.slopes]
        assert distance(model(tokens).logits, expected) > 100 * EXACT  # the control


def test_falcon_in_bfloat16(falcon: tuple[Path, Any]) -> None:
    """Rounded at other places, but no further from the exact logits than twice what transformers itself is."""
    folder, theirs = falcon
    tokens = text(300)
    with torch.no_grad():
        exact = theirs(tokens).logits
        half = copy.deepcopy(theirs).bfloat16()(tokens).logits
        ours = archetype.load(folder, dtype="bfloat16").model(tokens).logits
    assert ours.dtype == torch.bfloat16
    assert distance(ours, exact) < 2 * distance(half, exact)


def test_falcons_greedy_text_is_that_of_transformers(falcon: tuple[Path, Any]) -> None:
    folder, theirs = falcon
    prompt = text(250)[:1]
    expected = theirs.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    request = archetype.load(folder).engine().submit(prompt[0].tolist(), max_new_tokens=20, ignore_eos=True)
    request.result()
    assert request.tokens == expected[0, 250:].tolist()
