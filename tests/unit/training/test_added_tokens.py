"""A wider vocabulary: rows that begin as the mean of the others, and a tokenizer that transformers reads alike."""

from pathlib import Path

import pytest
import torch
import transformers

import archetype
from archetype.api import loading
from archetype.api.pretrained import open_pretrained
from archetype.errors import ArchetypeError
from archetype.spec import LoRA
from archetype.tokenizers import train_tokenizer
from archetype.tokenizers.added_tokens import add_tokens
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.unit.training.test_resume import assert_equal_states, steps

CPU = torch.device("cpu")
NAMES = ("<|user|>", "<|end|>", "naïve word", "[x]")


def test_new_rows_begin_as_the_mean_and_are_exported_with_their_tokens(tmp_path: Path, recipe: Recipe) -> None:
    assert isinstance(recipe.spec, dict)
    spec = recipe.spec | {"final_norm": {"kind": "rms"}, "vocab_size": 258}  # two rows that no token has
    recipe = recipe.replace(spec=spec, steps=4)
    steps(start(tmp_path / "base", recipe, CPU))
    before = loading.load(tmp_path / "base")
    wider = recipe.replace(add_tokens=NAMES)
    state = start(tmp_path / "run", wider, CPU, pretrained=open_pretrained(tmp_path / "base"))
    assert state.model.spec.vocab_size == 260  # type: ignore[union-attr]
    for name in ("embedding.token.weight", "lm_head.weight"):
        old, new = before.model.state_dict()[name], state.model.state_dict()[name]
        assert torch.equal(new[:256], old[:256])
        assert torch.equal(new[256:], old[:256].mean(0).expand(4, -1))
    first = steps(state, 2)
    again = resume(tmp_path / "run", CPU)
    steps(again)
    steps(state)
    assert len(first) == 2
    assert_equal_states(again, state)
    lm = loading.load(tmp_path / "run")
    assert lm.tokenizer is not None
    text = "a<|user|>the naïve word<|end|>[x] café"
    ids = lm.tokenizer.encode(text)
    assert {256, 257, 258, 259} < set(ids) and lm.tokenizer.decode(ids) == "athe naïve word café"
    archetype.export(lm, tmp_path / "hf")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").encode(text, add_special_tokens=False) == ids
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert model.get_input_embeddings().num_embeddings == 260
    tuned = start(
        tmp_path / "tuned", wider.replace(adapter=LoRA()), CPU,
        pretrained=open_pretrained(tmp_path / "base"),
    )  # fmt: skip
    assert tuned.recipe.trainable == ("embedding.token", "lm_head")


def test_every_kind_that_has_a_tokenizer_json_takes_tokens() -> None:
    text = "the model reads a token and says what comes next"
    for kind in ("bytes", "characters", "words", "byte_bpe", "bpe"):
        tokenizer = train_tokenizer(kind, [text], 300 if kind.endswith("bpe") else None)
        wider = add_tokens(tokenizer, NAMES)
        assert wider.encode(text) == tokenizer.encode(text)
        assert wider.encode("<|end|>") == [tokenizer.vocab_size + 1] and wider.eos == tokenizer.eos
        for names, message in (("",), "a name is empty"), ((NAMES[0],), "'<|user|>' is already a token"):
            with pytest.raises(ArchetypeError, match=message.replace("|", r"\|")):
                add_tokens(wider, names)
