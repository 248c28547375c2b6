"""The text half of GLM-5.3-Flash: Kimi delta attention, latents without rotated features, pools by learned gates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

import archetype
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from archetype.hf.cache import NAME
from archetype.models.cost import model_cost
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.weights import distance
from tests.helpers.zoo import TASKS, TEXT, write_small

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily", "ignore::archetype.errors.LeftOut")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glm5")
    write_small("glm5_next", folder, TASKS["image_text"])
    return folder


@torch.no_grad()
def test_the_texts_of_glm5_are_read(folder: Path) -> None:
    """Whole and step by step as transformers, with controls for what is new here."""
    theirs = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    lm: Any = archetype.load(folder, dtype="float32")
    recurrent, indexed, _ = lm.spec.layers
    assert (recurrent.mixer.kind, indexed.mixer.qk_rope_head_dim, lm.spec.residual.exit) == (
        "gated_delta_net",
        0,
        "mean",
    )
    index = indexed.mixer.index
    assert (index.pool, index.top_pools, index.pooling, index.norm_of, index.head_weights) == (
        2,
        2,
        "gated",
        "keys",
        True,
    )
    # a latent, a key of the index and its gates for each position of one layer
    states = [model_cost(lm.spec).state(length)[0] for length in (40, 41)]
    assert states[1] - states[0] == indexed.mixer.kv_lora_rank + 2 * index.head_dim
    whole = theirs(input_ids=TEXT, use_cache=False).logits
    assert distance(lm.model(TEXT).logits, whole) < EXACT
    cuts = list(range(3, TEXT.shape[1]))
    assert distance(in_chunks(lm.model, TEXT, lm.model.new_state(1, TEXT.shape[1]), cuts), whole) < EXACT
    output = theirs(input_ids=TEXT[:, :3], use_cache=True)
    steps = [output.logits]
    for position in cuts:
        output = theirs(input_ids=TEXT[:, position : position + 1], use_cache=True, **{NAME: output[NAME]})
        steps.append(output.logits)
    assert distance(torch.cat(steps, 1), whole) < EXACT
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for lost in ("index.pool_bias", "index.pool_gate.weight", "index.weights.weight", "index.k_norm.weight"):
        lose(f"blocks.1.mixer.{lost}")(lm.model)  # other pools are read
        assert distance(lm.model(TEXT).logits, whole) > WRONG
        lm.model.load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index_kpool": 4}, "an index of pools whose tensors do not fit its keys"),
        ({"index_topk": 5}, "does not select whole pools and the newest keys"),
        ({"index_kpool_always_select_tail": False}, "does not select whole pools and the newest keys"),
        ({"hc_mult": 3}, "residual streams"),
    ],
    ids=["pool", "budget", "tail", "streams"],
)
def test_what_is_not_glm5_is_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    shapes = {name: tuple(x.shape) for name, x in load_file(folder / "model.safetensors").items()}
    values = json.loads((folder / "config.json").read_text())
    values["text_config"] |= changes
    with pytest.raises(CheckpointError, match=message):
        read_unknown(values, shapes)
