"""Adapters from strangers: names are decided as in peft, in bounded time; what is broken is refused in one line."""

import copy
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file, save_file
from torch import Tensor

import archetype
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.peft import config
from archetype.convert.peft.config import CONFIG, WEIGHTS
from archetype.convert.peft.names import answer
from archetype.errors import ArchetypeError, CheckpointError
from archetype.families.llama import llama
from archetype.models.build import build
from tests.helpers.cases import case
from tests.helpers.weights import randomize
from tests.hostile.hostile_files import ODD, spoiled_bytes, spoiled_json

MODULES = [f"model.layers.{layer}.{module}" for layer in (0, 1, 11)
    for module in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")] + ["lm_head", "q_proj"]  # fmt: skip
PATTERNS = ("q_proj", r"layers\.1\..*", r"^model\.layers\.1.*", "self_attn.*_proj", "proj", r".*\.1\..*",
    "q_proj|v_proj", "(.*)down_proj", "layers.0.self_attn.q_proj", "lm_head", "")  # fmt: skip
SLOW = ("([a-z._0-9]+)+!", "(.|[a-z])*!")
PREFIX = "base_model.model.model.layers.0."
VALUES: dict[str, Any] = {
    "peft_type": "LORA", "base_model_name_or_path": "../base", "r": 2, "lora_alpha": 3, "bias": "none",
    "target_modules": ["q_proj", "down_proj"], "rank_pattern": {}, "alpha_pattern": {"q_proj": 5}, "use_dora": True,
    "modules_to_save": ["v_proj"], "lora_bias": False, "use_rslora": False, "init_lora_weights": True,
    "layers_to_transform": None, "exclude_modules": None, "layers_pattern": None, "ensure_weight_tying": False,
}  # fmt: skip


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_the_first_of_overlapping_patterns_counts_as_in_peft(key: str) -> None:
    differ_from_last = 0
    for patterns in itertools.permutations(PATTERNS, 3):
        values = {"r": 99, "lora_alpha": 99, key: {pattern: index for index, pattern in enumerate(patterns)}}
        answers = answer(values, MODULES)["modules"]
        for module, (rank, alpha, _) in zip(MODULES, answers, strict=True):
            theirs = values[key].get(get_pattern_key(patterns, module), 99)  # type: ignore[attr-defined]
            assert (rank if key == "rank_pattern" else alpha) == theirs, (patterns, module)
            last = values[key].get(get_pattern_key(patterns[::-1], module), 99)  # type: ignore[attr-defined]
            differ_from_last += theirs != last
    assert differ_from_last > 1000


def test_modules_are_targets_where_peft_says_so() -> None:
    draw, counts = random.Random(0), [0, 0]
    names = ("q_proj", "self_attn.v_proj", "lm_head", "model.layers.1.mlp.down_proj", "proj")
    for _ in range(1500):
        fields: dict[str, Any] = {
            "target_modules": draw.choice([draw.choice(PATTERNS[:-1]), draw.sample(names, 2)]),
            "exclude_modules": draw.choice([None, draw.choice(PATTERNS), draw.sample(names, 1)]),
            "modules_to_save": draw.choice([None, None, draw.sample(names, 1)]),
        }
        if isinstance(fields["target_modules"], list):
            fields["layers_to_transform"] = draw.choice([None, 1, [0], [0, 11], []])
            fields["layers_pattern"] = draw.choice([None, "layers", ["h", "layers"], "(l|L)ayers"])
            if fields["layers_to_transform"] is None:
                fields["layers_pattern"] = None
        theirs = peft.LoraConfig(r=2, **fields)
        values = {"r": 2, "lora_alpha": 2} | {key: value for key, value in fields.items() if value is not None}
        for module, (_, _, ours) in zip(MODULES, answer(values, MODULES)["modules"], strict=True):
            target = check_target_module_exists(theirs, module)
            assert ours == (bool(target) and not isinstance(target, _ExcludedModule)), (fields, module)
            counts[ours] += 1
    assert min(counts) > 500


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, and a sound adapter beside it."""
    place = tmp_path_factory.mktemp("adapters")
    spec = llama(num_layers=1, d_model=16, num_heads=4, num_kv_heads=2, d_ff=12, vocab_size=32, context_length=16)
    export(LanguageModel(spec, randomize(build(spec))), place / "base")
    (place / "sound").mkdir()
    (place / "sound" / CONFIG).write_text(json.dumps(VALUES))
    sizes = {"self_attn.q_proj": (16, 16), "mlp.down_proj": (16, 12)}
    tensors = {f"{PREFIX}self_attn.v_proj.weight": torch.randn(8, 16)}
    for module, (rows, columns) in sizes.items():
        tensors |= {
            f"{PREFIX}{module}.lora_A.weight": torch.randn(2, columns),
            f"{PREFIX}{module}.lora_B.weight": torch.randn(rows, 2),
            f"{PREFIX}{module}.lora_magnitude_vector": torch.rand(rows),
        }
    save_file(tensors, place / "sound" / WEIGHTS)
    return place


def loaded(place: Path, values: dict[str, Any] | bytes, tensors: dict[str, Tensor] | bytes) -> dict[str, Tensor]:
    """The weights of the base with an adapter of these, in a folder of its own."""
    folder = place / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / CONFIG).write_bytes(values if isinstance(values, bytes) else json.dumps(values).encode())
    if isinstance(tensors, bytes):
        (folder / WEIGHTS).write_bytes(tensors)
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    return archetype.load(folder).model.state_dict()


def refusal(place: Path, values: Any, tensors: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        loaded(place, values, tensors)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Changes of a tensor: of another shape, rank, type or name; gone, or there twice.
CHANGES: dict[str, Callable[[str, Tensor], dict[str, Tensor]]] = {
    "turned": lambda name, t: {name: t.permute(*reversed(range(t.dim())))},
    "flat": lambda name, t: {name: t.flatten()},
    "of one more dimension": lambda name, t: {name: t[None]},
    "of one row less": lambda name, t: {name: t[:-1]},
    "of one more row": lambda name, t: {name: torch.cat([t, t[:1]])},
    "of as many numbers": lambda name, t: {name: t.reshape(1, 2, -1)},
    "a scalar": lambda name, t: {name: t.flatten()[0].clone()},
    "empty": lambda name, t: {name: t[:0]},
    "whole numbers": lambda name, t: {name: t.to(torch.int64)},
    "bytes": lambda name, t: {name: t.to(torch.int8)},
    "gone": lambda name, t: {},
    "of another name": lambda name, t: {name + "x": t},
    "of no layer": lambda name, t: {name.replace("layers.0", "layers.7"): t},
    "there twice": lambda name, t: {name: t, name.removeprefix("base_model.model."): t.clone()},
}


def test_tensors_of_other_shapes_are_refused_and_never_reshaped(adapters: Path) -> None:
    sound = load_file(adapters / "sound" / WEIGHTS)
    loaded(adapters, VALUES, sound)
    for name, tensor in sound.items():
        for change, spoil in CHANGES.items():
            if change == "turned" and (tensor.dim() == 1 or tensor.shape[0] == tensor.shape[1]):
                continue
            if change == "flat" and tensor.dim() == 1:
                continue
            if change == "gone" and name.endswith("v_proj.weight"):
                continue
            others = {other: value for other, value in sound.items() if other != name}
            with case(name, change):
                assert WEIGHTS in refusal(adapters, VALUES, others | spoil(name, tensor)) or change in (
                    "whole numbers", "bytes")  # fmt: skip


def test_what_an_adapter_says_and_what_it_holds_must_agree(adapters: Path) -> None:
    sound = load_file(adapters / "sound" / WEIGHTS)
    plain = {name: tensor for name, tensor in sound.items() if not name.endswith("vector")}
    for change, tensors, words in (
        ({}, plain, "lora_magnitude_vector: is missing"),
        ({"use_dora": False}, sound, "requires use_dora, which adapter_config.json does not set"),
        ({"lora_bias": True}, sound, "lora_B.bias: is missing"),
        ({"use_rslora": "false"}, sound, "use_rslora: is missing or damaged"),
        ({"r": 4}, sound, "has rank 2, but adapter_config.json says 4"),
        ({"rank_pattern": {"q_proj": 3, ".*q_proj": 2}}, sound, "has rank 2, but adapter_config.json says 3"),
        ({"alpha_pattern": {"(": 3}}, sound, "alpha_pattern: '(' is not a regular expression"),
        ({"rank_pattern": {"a{99999999999}": 3}}, sound, "rank_pattern: 'a{99999999999}' is not a regular expression"),
        ({"alpha_pattern": {"(?i)Q_PROJ": 3}}, sound, "alpha_pattern: '(?i)Q_PROJ' is not a regular expression"),
        ({"modules_to_save": [3]}, sound, "modules_to_save: 3 is neither a name nor"),
        ({"base_model_name_or_path": "../case"}, sound, "names the adapter itself as the base"),
        ({"lora_alpha": float("nan")}, sound, "lora_alpha: nan is not a factor"),
        ({"r": 10**400}, sound, "is not a rank"),
    ):  # fmt: skip
        assert words in refusal(adapters, VALUES | change, tensors)


@pytest.mark.parametrize("key", ["alpha_pattern", "target_modules"])
def test_a_regular_expression_takes_no_longer_than_it_may(
    key: str, adapters: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "MAX_SECONDS", 0.2)
    sound = load_file(adapters / "sound" / WEIGHTS)
    for pattern in SLOW:
        begin = time.monotonic()
        words = refusal(adapters, VALUES | {key: {pattern: 3} if key.endswith("pattern") else pattern}, sound)
        assert "finding the modules that it names takes longer than 0.2 s; simplify its regular expressions" in words
        assert time.monotonic() - begin < 30


def hostile(sound: Path, count: int) -> Iterator[tuple[str, bytes, bytes | dict[str, Tensor]]]:
    """Configurations and tensors of which one or both are spoiled."""
    draw = random.Random(0)
    said, weights, tensors = (sound / CONFIG).read_bytes(), (sound / WEIGHTS).read_bytes(), load_file(sound / WEIGHTS)
    for number in range(count):
        match number % 4:
            case 0:
                key, value = draw.choice([*VALUES]), copy.deepcopy(draw.choice(ODD))
                nested = draw.choice([value, [value], {"q_proj": value}, {str(value)[:200]: 1}])
                yield key, json.dumps(VALUES | {key: nested}).encode(), weights
            case 1:
                yield "keys", spoiled_json(draw, said) or b"", weights
            case 2:
                names = draw.sample([*tensors], 2)
                changed = {name: tensor for name, tensor in tensors.items() if name not in names}
                for name in names:
                    changed |= draw.choice([*CHANGES.values()])(name, tensors[name])
                yield "tensors", said, changed
            case _:
                yield "bytes", spoiled_bytes(draw, said) if draw.random() < 0.4 else said, spoiled_bytes(draw, weights)


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_broken_adapters_are_refused_in_one_line(count: int, adapters: Path) -> None:
    refused = 0
    for what, said, tensors in hostile(adapters / "sound", count):
        begin = time.monotonic()
        with case(what, said[:200]):
            try:
                loaded(adapters, said, tensors)
            except ArchetypeError as error:
                refused += 1
                assert "\n" not in str(error) and len(str(error)) <= 300, error
            assert time.monotonic() - begin < 30
    assert refused > count / 3
