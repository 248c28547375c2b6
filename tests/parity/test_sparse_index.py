"""DeepSeek-V3.2 and GLM-5 are read from their folders, with the index that selects keys, and compute what they do."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

import archetype
from archetype import spec
from archetype.errors import CheckpointError
from archetype.hf.cache import NAME
from archetype.models.causal import CausalModel
from archetype.parts.lightning_index.module import LightningIndex
from tests.helpers.examples import every
from tests.helpers.passes import forward_step
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance
from tests.helpers.zoo import TASKS, class_of, drawn, small_config

pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
TOP, T = 5, 40
TEXTS = torch.randint(1, 61, (2, T), generator=torch.Generator().manual_seed(3))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
FIVE = {"num_hidden_layers": 5}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek": ("deepseek_v32", {}),
    "deepseek, yarn": ("deepseek_v32", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}}),
    "deepseek, groups": ("deepseek_v32", {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 0}),
    "deepseek, an index that rotates whole": ("deepseek_v32", {"index_head_dim": 4}),
    "deepseek, biases": ("deepseek_v32", {"attention_bias": True, "rms_norm_eps": 1e-2}),
    "glm": ("glm_moe_dsa", {}),
    "glm, yarn": ("glm_moe_dsa", {"rope_parameters": YARN}),
    "glm, shared": ("glm_moe_dsa", FIVE | {"indexer_types": ["full", "shared", "full", "shared", "shared"]}),
    "glm, a pattern": ("glm_moe_dsa", FIVE | {"index_topk_pattern": "FFSSF", "first_k_dense_replace": 4}),
    "glm, a period": ("glm_moe_dsa", FIVE | {"index_topk_freq": 2, "index_skip_topk_offset": 2}),
}


def written(variant: str, folder: Path) -> tuple[PreTrainedModel, CausalModel]:
    """Their model with every tensor random, and ours read from its folder."""
    kind, changes = VARIANTS[variant]
    config = small_config(kind)
    values = config.to_dict() | {"layer_types": None, "mlp_layer_types": None, "indexer_types": None} | changes
    config = type(config)(**values)
    config.architectures = [class_of(config, TASKS["causal"])[0].__name__]
    make, config = class_of(config, TASKS["causal"])
    model = drawn(make(config))
    for name, tensor in model.state_dict().items():
        assert not ((tensor == 0) | (tensor == 1)).any(), name
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), read(folder)


def read(folder: Path) -> CausalModel:
    model = archetype.load(folder).model.eval()
    assert isinstance(model, CausalModel)
    return model


def indexes(model: CausalModel) -> list[LightningIndex]:
    return [part for part in model.modules() if isinstance(part, LightningIndex)]


def theirs_in_steps(model: PreTrainedModel, cuts: list[int]) -> Tensor:
    cache, pieces = None, []
    for piece in TEXTS.tensor_split(cuts, 1):
        output = model(piece, **{NAME: cache}, use_cache=True)
        cache = output[NAME]
        pieces.append(output.logits)
    return torch.cat(pieces, 1)


def ours_in_steps(model: CausalModel, cuts: list[int]) -> Tensor:
    state, pieces = model.new_state(len(TEXTS), T), []
    for piece in TEXTS.tensor_split(cuts, 1):
        logits, state = forward_step(model, piece, state)
        pieces.append(logits)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("variant", every(3, VARIANTS))
@torch.no_grad()
def test_the_logits_agree_where_keys_are_left_out(variant: str, tmp_path: Path) -> None:
    theirs, ours = written(variant, tmp_path)
    assert {index.spec.top_k for index in indexes(ours)} == {TOP}
    for length in (TOP - 1, TOP, TOP + 1, T):
        shorter = TEXTS[:, :length]
        assert distance(ours(shorter).logits, theirs(shorter).logits) < EXACT, length
    expected = theirs(TEXTS).logits
    for cuts in ([17, 18, 30], list(range(3, T))):
        assert distance(theirs_in_steps(theirs, cuts), expected) < EXACT
        assert distance(ours_in_steps(ours, cuts), expected) < EXACT


@pytest.mark.parametrize("variant", ["glm, a pattern", "glm, a period", "glm"])
@torch.no_grad()
def test_layers_share_as_the_keys_say_where_no_list_names_them(variant: str, tmp_path: Path) -> None:
    theirs, ours = written(variant, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    types = values.pop("indexer_types")
    (tmp_path / "config.json").write_text(json.dumps(values))
    again = read(tmp_path)
    assert again.spec == ours.spec
    assert isinstance(again.spec, spec.Decoder)
    mixers = [layer.mixer for layer in again.spec.layers]
    shares = [
        isinstance(one, spec.LatentAttention) and one.source(place) is not None for place, one in enumerate(mixers)
    ]
    assert shares == [one == "shared" for one in types]
    assert distance(again(TEXTS).logits, theirs(TEXTS).logits) < EXACT


@pytest.mark.parametrize("variant", ["deepseek", "glm"])
@pytest.mark.parametrize(
    "key",
    every(
        2,
        [
            {"head_dim": 12},  # GLM-5.2 says 192, where 64 features rotate
            {"rope_interleave": False},
            {"indexer_rope_interleave": False},
            {"index_share_for_mtp_iteration": True},
            {"layer_types": 2 * ["deepseek_sparse_attention"]},
            {"num_nextn_predict_layers": 1},
            {"moe_router_dtype": "float32"},
        ],
    ),
    ids=lambda key: next(iter(key)),
)
@torch.no_grad()
def test_keys_of_published_files_change_here_what_they_change_there(
    variant: str, key: dict[str, Any], tmp_path: Path
) -> None:
    theirs, ours = written(variant, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | key))
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(TEXTS).logits, theirs(TEXTS).logits)
    assert torch.equal(read(tmp_path)(TEXTS).logits, ours(TEXTS).logits)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the first layer shares": ({"indexer_types": ["shared", *4 * ["full"]]}, "the missing index of an earlier layer"),
    "a layer with tensors shares": (
        {"indexer_types": ["full", "shared", "full", "full", "shared"]},
        r"layers\.1: needs an index in a layer that reuses another layer's index",
    ),
    "a layer without tensors does not share": (
        {"indexer_types": ["full", "full", "full", "full", "shared"]}, r"layers\.2: needs a mixer without index\.q",
    ),
    "an unknown word": ({"indexer_types": 5 * ["none"]}, "does not say whether layer 0 shares an index"),
    "other sizes": ({"index_n_heads": 7}, "an index whose tensors do not fit its keys"),
    "another kind of layer": ({"layer_types": 5 * ["full_attention"]}, "an index in a layer of type 'full_"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_class_would_read_otherwise_is_refused(case: str, tmp_path: Path) -> None:
    changes, message = REFUSED[case]
    written("glm, a period", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["indexer_types"] == ["full", "full", "shared", "full", "shared"]
    (tmp_path / "config.json").write_text(json.dumps(values | changes))
    with pytest.raises(CheckpointError, match=message):
        archetype.load(tmp_path)


def halves(model: CausalModel) -> None:
    for index in indexes(model):
        assert index.rotary is not None
        position = index.rotary.spec
        index.rotary = type(index.rotary)(position.replace(interleaved=not position.interleaved), index.spec.sizes)


def last_features(model: CausalModel) -> None:
    """The last features rotate, as in the attention, and not the first."""
    for index in indexes(model):
        rotated, heads, width = index.spec.sizes.rotary_dim, index.spec.num_heads, index.spec.head_dim
        index.q.weight.copy_(index.q.weight.view(heads, width, -1).roll(-rotated, 1).flatten(0, 1))
        index.k.weight.copy_(index.k.weight.roll(-rotated, 0))
        assert index.k_norm is not None
        for tensor in (index.k_norm.weight, index.k_norm.bias):
            tensor.copy_(tensor.roll(-rotated))


def all_keys(model: CausalModel) -> None:
    for index in indexes(model):
        index.spec = index.spec.replace(top_k=T)


def no_norm(model: CausalModel) -> None:
    for index in indexes(model):
        index.k_norm = None


def other_eps(model: CausalModel) -> None:
    for index in indexes(model):
        assert index.k_norm is not None
        index.k_norm.eps = 1e-1  # type: ignore[assignment]


CONTROLS: dict[str, Callable[[CausalModel], None]] = {
    "pairs of halves for neighbors, or the reverse": halves,
    "the last features rotate": last_features,
    "all keys": all_keys,
    "no norm": no_norm,
    "another eps": other_eps,
}


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("variant", ["deepseek", "glm"])
@torch.no_grad()
def test_an_index_that_is_another_shows_only_where_keys_are_left_out(
    variant: str, control: str, tmp_path: Path
) -> None:
    theirs, ours = written(variant, tmp_path)
    CONTROLS[control](ours)
    assert distance(ours(TEXTS[:, :TOP]).logits, theirs(TEXTS[:, :TOP]).logits) < EXACT
    assert distance(ours(TEXTS).logits, theirs(TEXTS).logits) > WRONG


@pytest.mark.parametrize("variant", every(2, VARIANTS))
def test_the_folder_is_written_back_tensor_by_tensor(variant: str, tmp_path: Path) -> None:
    written(variant, tmp_path / "theirs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archetype.export(archetype.load(tmp_path / "theirs"), tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    values = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "back")]
    differing = {key for key in values[0] | values[1] if values[0].get(key) != values[1].get(key)}
    assert differing <= {"transformers_version"}


@torch.no_grad()
def test_a_folder_in_fp8_whose_list_of_exceptions_misspells_the_index_is_read(tmp_path: Path) -> None:
    """GLM-5-FP8 names `indexers_proj`; which tensors are in FP8 is told by their scales."""
    written("glm, shared", tmp_path / "plain")
    (tmp_path / "fp8").mkdir()
    stored, plain = {}, load_file(tmp_path / "plain" / "model.safetensors")
    for name, tensor in plain.items():
        if tensor.ndim != 2 or name.endswith(("embed_tokens.weight", "lm_head.weight", "gate.weight", "s_proj.weight")):
            stored[name] = tensor
            continue
        scale = tensor.abs().max() / 448.0
        stored[name] = (tensor / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.view(1, 1)
        plain[name] = stored[name].float() * scale
    assert "model.layers.0.self_attn.indexer.weights_proj.weight_scale_inv" not in stored
    assert "model.layers.0.self_attn.indexer.wk.weight_scale_inv" in stored
    exceptions = ["lm_head", "model.embed_tokens", "model.layers.0.self_attn.indexers_proj"]
    method = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    values = json.loads((tmp_path / "plain" / "config.json").read_text())
    values["quantization_config"] = method | {"modules_to_not_convert": exceptions}
    (tmp_path / "fp8" / "config.json").write_text(json.dumps(values))
    save_file(stored, tmp_path / "fp8" / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, tmp_path / "plain" / "model.safetensors", metadata={"format": "pt"})
    ours, theirs = (archetype.load(tmp_path / name, dtype="float32").model for name in ("fp8", "plain"))
    assert distance(ours(TEXTS).logits, theirs(TEXTS).logits) < EXACT
