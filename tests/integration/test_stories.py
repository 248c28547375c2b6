"""A real model from its folder to its text: stories260K, a Llama of 260,000 parameters, and its tokenizer."""

from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

import archetype
from archetype.api.language_model import LanguageModel
from benchmarks import state_dtype
from tests.helpers.weights import distance

PROMPTS = ["Once upon a time", "Tom had a big red car. He", ""]


@cache
def loaded(folder: Path) -> LanguageModel:
    return archetype.load(folder)


@cache
def told(folder: Path) -> str:
    return loaded(folder).generate("", max_new_tokens=200)


@pytest.fixture
def folder(shared: Path) -> Path:
    return shared / "stories260K"


@pytest.fixture
def stories(folder: Path) -> LanguageModel:
    return loaded(folder)


def test_the_greedy_story_is_the_known_one(folder: Path) -> None:
    expected = (folder / "expected_greedy.txt").read_text().rstrip("\n")
    story = told(folder)
    assert story.startswith(expected.rpartition(" ")[0])  # the last word of either may be cut
    assert story.startswith(expected) or expected.startswith(story)
    assert len(story) > 400


def test_streamed_pieces_join_to_the_same_text(folder: Path, stories: LanguageModel) -> None:
    pieces = list(stories.stream("", max_new_tokens=60))
    assert len(pieces) > 30
    assert told(folder).startswith("".join(pieces))
    assert "".join(pieces) == stories.generate("", max_new_tokens=60)


def test_a_stop_string_ends_the_text_and_is_left_out(folder: Path, stories: LanguageModel) -> None:
    for stop in ("park", "One day, she", "d to pl"):
        assert stories.generate("", max_new_tokens=60, stop=["never", stop]) == told(folder).partition(stop)[0]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95, "seed": 1}], ids=["greedy", "sampled"])
def test_a_batch_is_as_each_prompt_alone(stories: LanguageModel, sampling: dict[str, float]) -> None:
    together = stories.generate(PROMPTS, max_new_tokens=30, **sampling)
    assert together == [stories.generate(prompt, max_new_tokens=30, **sampling) for prompt in PROMPTS]
    assert len(set(together)) == 3


def test_a_story_goes_on_past_the_context(stories: LanguageModel) -> None:
    prompt = "One day, Lily went to the park. " * 40
    room = stories.spec.context_length - len(stories.tokenizer.encode(prompt)) - 1
    assert 0 < room < 40
    text = stories.generate(prompt, max_new_tokens=room + 30)
    within = stories.generate(prompt, max_new_tokens=room)
    assert text.startswith(within)
    assert len(text) > len(within) + 40


@pytest.fixture
def exported(stories: LanguageModel, tmp_path: Path) -> Path:
    archetype.export(stories, tmp_path / "out", shard_bytes=300_000)
    return tmp_path / "out"


def test_what_is_exported_is_loaded_bit_for_bit(stories: LanguageModel, exported: Path) -> None:
    assert len(list(exported.glob("*.safetensors"))) > 2
    read = archetype.load(exported)
    assert (read.spec, read.special, read.sampling) == (stories.spec, stories.special, stories.sampling)
    weights = dict(read.model.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in stories.model.named_parameters())
    assert read.generate(PROMPTS[0], max_new_tokens=20) == stories.generate(PROMPTS[0], max_new_tokens=20)


@torch.no_grad()
def test_transformers_reads_the_export_and_computes_the_same(stories: LanguageModel, exported: Path) -> None:
    theirs = LlamaForCausalLM.from_pretrained(exported).eval()
    tokens = torch.tensor([[1, *stories.tokenizer.encode(PROMPTS[1] + " drove it to the park.")]])
    ours, expected = stories.model(tokens).logits, theirs(tokens).logits
    assert distance(ours, expected) < 1e-5
    theirs.model.layers[0].self_attn.q_proj.weight.mul_(1.01)
    assert distance(ours, theirs(tokens).logits) > 1e-5  # what a small error would look like
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (1, 2)


def test_keys_and_values_of_few_bits_change_few_predictions(folder: Path) -> None:
    """docs/log/decoding.md has the figures of more and longer texts."""
    lm = archetype.CausalLM.load(folder)  # of its own: the type of its keys changes
    texts = state_dtype.sampled(lm, 4, 160)
    exact = state_dtype.logits(lm, texts)
    for dtype, divergence, agreement in (("bfloat16", 5e-4, 0.985), ("float16", 1e-5, 0.995), ("int8", 4e-3, 0.96)):
        difference = state_dtype.differences(exact, state_dtype.logits(lm.use_state_dtype(dtype), texts))
        assert 0 < difference.kl < divergence and difference.agreement >= agreement, (dtype, difference)
