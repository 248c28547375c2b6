"""The text of a model that also reads images, whose config.json leaves out what its class has by default.

The section of LLaVA 1.5 names neither the base of the rotary positions nor the number of heads.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.errors import CheckpointError
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.published import EXACT
from tests.helpers.weights import distance
from tests.helpers.zoo import TEXT, page_of, rows_of, write_small

ROWS = rows_of(page_of("causal").read_text(encoding="utf-8"))
AGREE = sorted(kind for kind, (status, _) in ROWS.items() if status == "agrees")
READ = ("llama", "deepseek_v2", "deepseek_v3", "mamba", "mamba2")  # others may be refused
# its class does not read rotary_dim, but the class of an outer type that transformers does not have may
OTHERWISE = "minimax_m3_vl_text"


def as_text_section(model: Path, kind: str, folder: Path) -> Path:
    """The model as the text part of a LLaVA, with the keys in which it differs from its class alone."""
    values, default = json.loads((model / "config.json").read_text()), CONFIG_MAPPING[kind]().to_dict()
    stated = ("model_type", "architectures")
    text = {key: one for key, one in values.items() if key in stated or key not in default or default[key] != one}
    text["ep_size"] = 1  # which the class does not read, as in Kimi K2.5
    whole: dict[str, Any] = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    whole |= {"text_config": text, "tie_word_embeddings": values.get("tie_word_embeddings", True)}
    tensors = load_file(model / "model.safetensors")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(whole))
    save_file({f"language_model.{name}": one for name, one in tensors.items()}, folder / "model.safetensors")
    return folder


def agrees(kind: str, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = write_small(kind, folder / "alone")
        lm = archetype.load(as_text_section(folder / "alone", kind, folder / "section"))
    with torch.no_grad():
        assert distance(lm.model(TEXT).logits, expected[:1]) < EXACT


def test_a_section_has_the_defaults_of_its_class(tmp_path: Path) -> None:
    for kind in READ:
        with case(kind):
            agrees(kind, tmp_path / kind)


@pytest.mark.parametrize("kind", every(40, [kind for kind in AGREE if kind not in (*READ, OTHERWISE)]))
def test_a_section_of_any_type_agrees_or_is_refused(kind: str, tmp_path: Path) -> None:
    try:
        agrees(kind, tmp_path)
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_a_section_without_a_type_is_refused(tmp_path: Path) -> None:
    write_small("llama", tmp_path / "alone")
    section = as_text_section(tmp_path / "alone", "llama", tmp_path / "section")
    values = json.loads((section / "config.json").read_text())
    del values["text_config"]["model_type"]
    (section / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"config.json: text_config.model_type: None is not a model type"):
        archetype.load(section)
