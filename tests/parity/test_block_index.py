"""MiniMax M3's text half is read from its folder, with the index that selects blocks, and computes what it does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import archetype
from archetype.errors import CheckpointError
from archetype.models.causal import CausalModel
from archetype.parts.block_index.module import BlockIndex
from tests.helpers.examples import every
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance
from tests.helpers.zoo import TASKS, class_of, drawn, small_config
from tests.parity.test_sparse_index import TEXTS, T, ours_in_steps, theirs_in_steps

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
SIZES = {"index_block_size": 4, "index_topk_blocks": 3, "index_local_blocks": 1}
OLDER = {
    "sparse_num_index_heads": 2, "sparse_index_dim": 8, "sparse_block_size": 3, "sparse_topk_blocks": 4,
    "sparse_local_block": 2,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "blocks of four": SIZES,
    "two local blocks": SIZES | {"index_block_size": 3, "index_topk_blocks": 4, "index_local_blocks": 2},
    "a partial rotation": SIZES | {"rotary_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
}


def written(changes: dict[str, Any], folder: Path) -> tuple[PreTrainedModel, CausalModel]:
    """Their model with every tensor random, and ours read from its folder."""
    config = small_config("minimax_m3_vl_text")
    config = type(config)(**config.to_dict() | changes)
    config.architectures = [class_of(config, TASKS["causal"])[0].__name__]
    make, config = class_of(config, TASKS["causal"])
    model = drawn(make(config))
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), read(folder)


def read(folder: Path) -> CausalModel:
    model = archetype.load(folder).model.eval()
    assert isinstance(model, CausalModel)
    return model


@pytest.mark.parametrize("variant", every(2, VARIANTS))
@torch.no_grad()
def test_the_logits_agree_where_blocks_are_left_out(variant: str, tmp_path: Path) -> None:
    theirs, ours = written(VARIANTS[variant], tmp_path)
    indexes = [part for part in ours.modules() if isinstance(part, BlockIndex)]
    assert indexes and all(part.spec.top_blocks * part.spec.block < T for part in indexes)
    expected: Tensor = theirs(TEXTS).logits
    assert distance(ours(TEXTS).logits, expected) < EXACT
    for cuts in ([17, 18, 30], list(range(3, T))):
        assert distance(theirs_in_steps(theirs, cuts), expected) < EXACT
        assert distance(ours_in_steps(ours, cuts), expected) < EXACT
    # control: without the selection
    config = json.loads((tmp_path / "config.json").read_text()) | {"index_topk_blocks": T}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert distance(read(tmp_path)(TEXTS).logits, expected) > WRONG


@torch.no_grad()
def test_the_older_names_of_the_sizes_are_read(tmp_path: Path) -> None:
    _, ours = written({key: value for key, value in SIZES.items() if "local" in key}, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"sparse_attention_config": OLDER}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("index_")}))
    expected = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(TEXTS).logits
    assert distance(read(tmp_path)(TEXTS).logits, expected) < EXACT
    assert distance(ours(TEXTS).logits, expected) > WRONG  # control: the other sizes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_topk_blocks": None}, "an index of blocks whose size is unknown"),
        ({"index_n_heads": 1}, "an index whose tensors do not fit its keys"),
        ({"layer_types": ["full_attention", "full_attention"]}, "an index in a layer of type 'full_attention'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(SIZES, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)
