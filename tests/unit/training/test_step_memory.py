"""The memory that a plan gives a step is the memory that the step takes, to a tenth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype import families, spec
from archetype.data.corpus import Corpus
from archetype.estimate.report import cost_report
from archetype.models.build import build
from archetype.runs.directory import Run
from archetype.training import chunked_loss, memory
from archetype.training.loop import take_step
from archetype.training.master_weights import MasterWeights
from archetype.training.memory import StepMemoryCost
from archetype.training.objectives import base
from archetype.training.objectives.next_token import NextTokenObjective
from archetype.training.plan import plan
from archetype.training.recipe import Recipe
from archetype.training.resolve import resolve_recipe
from archetype.training.setup import start
from archetype.training.state import TrainState
from tests.helpers.live_bytes import LiveBytes

# of the model: preset, vocabulary, rows, tokens; of the recipe: what it says otherwise
CASES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "plain": ("llama-tiny", 8000, 4, 64, {}),
    "tied, average": ("gpt2-tiny", 8000, 4, 64, {"ema_decay": 0.9}),
    "chunks of logits": ("llama-tiny", 16_000, 8, 64, {"chunked": True}),
    "chunks, autocast": ("llama-tiny", 16_000, 8, 64, {"chunked": True, "dtype": "bfloat16"}),
    "chunks, capped": ("gemma2-tiny", 16_000, 8, 64, {"chunked": True}),
    "recomputed": ("llama-tiny", 300, 16, 128, {"recompute": "blocks"}),
    "one recomputed": ("gpt2-tiny", 300, 16, 128, {"recompute": 1}),
    "accumulation": ("llama-tiny", 300, 16, 128, {"micro_batch_size": 8}),
    "weights in bfloat16": ("llama-tiny", 300, 16, 128, {"weights_dtype": "bfloat16", "dtype": "bfloat16"}),
    "muon": ("llama-tiny", 300, 1, 8, {"optimizer": {"kind": "muon"}}),
    "adafactor": ("llama-tiny", 300, 1, 8, {"optimizer": {"kind": "adafactor"}}),
    "lion": ("llama-tiny", 300, 1, 8, {"optimizer": {"kind": "lion"}}),
    "sgd": ("llama-tiny", 300, 1, 8, {"optimizer": {"kind": "sgd"}}),
    "shared layers": ("llama-tiny", 300, 16, 128, {"changes": ["layers[1].weights_of=0"]}),
    "further tokens": ("llama-tiny", 8000, 4, 64, {"further": 2}),
    "further tokens, chunks": ("llama-tiny", 16_000, 8, 64, {"further": 2, "chunked": True}),
    "further tokens, autocast": ("gpt2-tiny", 300, 16, 128, {"further": 1, "dtype": "bfloat16"}),
    "a head alone": ("llama-tiny", 300, 16, 128, {"trainable": ["lm_head"]}),
}


def measured_peak(recipe: Recipe, model: spec.ModelSpec, batch: int, length: int) -> int:
    """The most bytes that a step holds, with weights, masters, average and the optimizer's state."""
    tokens = np.random.default_rng(0).integers(model.vocab_size, size=batch * length * 4, dtype=np.int32)
    objective = NextTokenObjective(Corpus(tokens, tokens, len(tokens), ""), batch, length, seed=0)
    state = TrainState.build(Run(Path()), recipe, None, objective, build(model))
    take_step(state)
    optimizer = [value for values in state.optimizer.state.values() for value in values.values()]
    masters = [*state.optimizer.masters.values()] if isinstance(state.optimizer, MasterWeights) else []
    held = [*state.model.parameters(), *masters, *(state.average.tensors.values() if state.average else []), *optimizer]
    held += list(state.model.buffers())
    with LiveBytes(held) as counter:
        take_step(state)
    return sum(tensor.untyped_storage().nbytes() for tensor in held) + counter.peak


def test_the_memory_of_a_step_is_within_a_tenth_of_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {}
    for name, (preset, vocab_size, batch, length, fields) in CASES.items():
        fields = {"dtype": "float32"} | fields
        with monkeypatch.context() as patch:
            if fields.pop("chunked", False):
                for module in (base, memory):
                    patch.setattr(module, "LARGE_LOGITS", 0)
                for module in (chunked_loss, memory):
                    patch.setattr(module, "chunk_rows", lambda vocab_size: 64)
            changes, count = fields.pop("changes", []), fields.pop("further", 0)
            further = [f"further_tokens={{count: {count}}}"] if count else []
            recipe = Recipe.parse({"batch_size": batch, "sequence_length": length} | fields)
            model = spec.assign(families.preset(preset), [f"vocab_size={vocab_size}", *changes, *further])
            rows = recipe.micro_batch_size or batch
            plan = StepMemoryCost(recipe, model).step(rows, length, rows < batch)
            ratios[name] = plan.peak / measured_peak(recipe, model, batch, length)
    assert all(0.9 < ratio < 1.1 for ratio in ratios.values()), str(ratios)


def test_a_plan_says_what_a_run_takes_and_writes_nothing(tmp_path: Path, recipe: Recipe) -> None:
    folder, device = tmp_path / "run", torch.device("cpu")
    half, whole = (
        plan(resolve_recipe(folder, recipe.replace(recompute=blocks, micro_batch_size=16), device), device)
        for blocks in ("none", "blocks")
    )
    assert not folder.exists()
    state = start(folder, recipe, device)
    assert half.parameters == half.trained == sum(parameter.numel() for parameter in state.model.parameters())
    assert (half.steps, half.tokens, half.rows, half.length) == (12, 12 * 64 * 16, 16, 16)
    assert half.flops == 12 * cost_report(state.model.spec, 64, 16).flops["train"] < whole.flops
    assert half.memory.activations > whole.memory.activations and half.memory.weights == whole.memory.weights
    cast, whole_numbers = (
        StepMemoryCost(recipe.replace(dtype=dtype), state.model.spec) for dtype in ("bfloat16", "float32")
    )
    assert whole_numbers.step(16, 16).weight_copies == 0 < cast.step(16, 16).weight_copies == cast.memory.cast_weights
    assert half.fits and half.is_measured and half.seconds > 0
    assert half.to_json()["memory"]["peak"] == half.memory.peak
    text = str(half.table())
    assert all(word in text for word in ("optimizer", "activations", "logits", "peak", "fits", "on a few steps"))
    from_head = plan(resolve_recipe(folder, recipe.replace(trainable=("lm_head",)), device), device)
    assert from_head.trained == state.model.lm_head.weight.numel()
