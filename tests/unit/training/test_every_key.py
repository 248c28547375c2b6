"""A walk over all keys of a recipe: each changes what a run does, is refused, or says here why neither is seen."""

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from archetype.errors import ArchetypeError
from archetype.spec.edit import put
from archetype.training.loop import train
from archetype.training.optimizers import Optimizer
from archetype.training.recipe import Recipe
from archetype.training.schedules import Schedule
from archetype.training.setup import start
from archetype.training.stop_signal import StopSignal
from tests.helpers.examples import every

CHANGES: dict[str, Any] = {  # of keys, and another value for each
    "spec": {"vocab_size": 256, "context_length": 16, "d_model": 8, "layers": [], "final_norm": "rms"},
    "data": {"lowercase": True, "tokenizer": "byte_bpe", "vocab_size": 280}, "objective": {"kind": "chat"},
    "trainable": ["lm_head"], "adapter": {"kind": "lora"}, "add_tokens": ["<a>"], "batch_size": 3,
    "micro_batch_size": 2,
    "sequence_length": 12, "steps": 5, "max_grad_norm": 0.01, "ema_decay": 0.5, "dtype": "bfloat16",
    "weights_dtype": "bfloat16", "seed": 3, "evaluate_every": 1, "evaluate_batches": 1, "checkpoint_every": 2,
    "keep_checkpoints": 1, "patience": 1, "optimizer": {"kind": "lion"}, "schedule": {"kind": "linear"},
    "teacher": {"model": "donor"}, "stages": [{"steps": 2, "trainable": ["lm_head"]}],
    "parallel": {"shard": 2}, "trackers": [{"kind": "tensorboard"}],
    "optimizer.learning_rate": 0.03, "optimizer.weight_decay": 0.5, "optimizer.betas": [0.5, 0.6], "optimizer.eps": 0.1,
    "optimizer.groups": [{"parameters": "lm_head", "learning_rate_ratio": 0.1}], "optimizer.momentum": 0.1,
    "optimizer.nesterov": None, "optimizer.num_iterations": 1, "optimizer.beta2_decay": -0.1,
    "optimizer.clip_threshold": 1.5, "schedule.warmup_steps": 3, "schedule.min_lr_ratio": 0.7,
    "schedule.decay_fraction": 0.9, "schedule.decay_shape": "linear",
}  # fmt: skip
UNSEEN = {  # keys that change no number of a run, and why
    "version": "of the file's format, and there is one",
    "recompute": "saves memory: tests/unit/training/test_memory.py",
    "compile": "saves time: tests/unit/training/test_block_execution.py",
    "trackers": "tests/unit/training/test_trackers.py",
    "optimizer.kind": "is the optimizer", "schedule.kind": "is the schedule",
    "keep_checkpoints": "of files: tests/unit/training/test_loop.py",
    "optimizer.state_bits": "needs torchao",
}  # fmt: skip
WHERE: dict[str, dict[str, Any]] = {  # what else a recipe says, so that a key can be seen
    "patience": {"optimizer": {"kind": "sgd", "learning_rate": 1e-12}, "evaluate_every": 1},
    "dtype": {"dtype": "float32"},
}


def _keys() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of a recipe, those of each optimizer and schedule with the kind that has them."""
    for key in Recipe.model_fields:
        yield key, {}
    roles: dict[str, Any] = {"optimizer": Optimizer, "schedule": Schedule}
    for role, base in roles.items():
        for kind, cls in base.kinds.items():
            for key in cls.model_fields:
                yield f"{role}.{key}", {role: {"kind": kind}}


KEYS = [pytest.param(key, base, id=" ".join((key, *(one["kind"] for one in base.values())))) for key, base in _keys()]


def done(data: dict[str, Any], folder: Path, text: Path) -> str:
    """What a run of a recipe does: its measurements without times, when it is saved, and its last weights."""
    texts = {"text": [str(text)], "tokenizer": "bytes"} | data.pop("data", {})
    state = start(folder, Recipe.parse(data | {"data": texts}), torch.device("cpu"))
    events = []
    for event in train(state, StopSignal()):
        values = {key: value for key, value in vars(event).items() if "second" not in key}
        events.append((type(event).__name__, values))
    digest = hashlib.sha256(repr(events).encode())
    for name, tensor in sorted(state.final_weights().items()):
        digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(("key", "base"), every(16, KEYS))
def test_a_key_changes_a_run_or_is_refused(key: str, base: dict[str, Any], recipe: Recipe, text_file: Path,
                                           tmp_path: Path) -> None:  # fmt: skip
    if key in UNSEEN:
        return
    common = recipe.dump() | {"steps": 4, "evaluate_every": 2, "batch_size": 4, "checkpoint_every": 100} | base
    common |= WHERE.get(key, {})
    if key in ("schedule.min_lr_ratio", "schedule.decay_fraction", "schedule.decay_shape"):
        rises = base["schedule"]["kind"] == "exponential_rise"
        common["schedule"] = base["schedule"] | ({} if rises else {"warmup_steps": 0})
    if key == "schedule.decay_shape":
        common["schedule"] |= {"decay_fraction": 1.0}
    del common["data"]
    value = CHANGES[key]
    if value is None:
        role, _, field = key.partition(".")
        value = not Recipe.parse(common).dump(full=True)[role][field]
    changed: dict[str, Any] = copy.deepcopy(common)
    put(changed, [f"{key}={json.dumps(value)}"])
    try:
        other = done(changed, tmp_path / "changed", text_file)
    except ArchetypeError as error:
        assert key.split(".")[0] in str(error) or key in ("parallel", "adapter", "spec"), error
        return
    assert other != done(common, tmp_path / "plain", text_file)


def test_every_key_has_another_value_or_a_reason() -> None:
    missing = {key for key, _ in _keys()} - CHANGES.keys() - UNSEEN.keys()
    assert not missing, f"say in CHANGES what to give them: {sorted(missing)}"


def test_the_same_recipe_does_the_same(recipe: Recipe, text_file: Path, tmp_path: Path) -> None:
    """The control: what is compared has nothing that differs by itself."""
    plain = {key: value for key, value in (recipe.dump() | {"steps": 4, "batch_size": 4}).items() if key != "data"}
    assert done(dict(plain), tmp_path / "one", text_file) == done(dict(plain), tmp_path / "other", text_file)
