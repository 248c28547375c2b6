"""Each key of a config.json changed alone: what transformers obeys is obeyed or refused, the rest changes nothing.

A score of changes runs with the other tests, every key of every type that is read in `make soak`.
"""

import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoModelForCausalLM

from archetype.convert.source import read_hf_spec
from archetype.errors import ReadOtherwise
from archetype.families.class_keys import class_keys, release_of, releases
from tests.helpers.cases import case
from tests.helpers.class_keys import row, types, universe
from tests.helpers.examples import every
from tests.helpers.one_key import ABSENT, ROUNDINGS, Change, SmallModel, condition, tried_types
from tests.helpers.published import EXACT

# By type: keys, other values, and whether they are read; what every one of them once did was to differ in silence.
SCORE: dict[str, list[tuple[dict[str, Any], str]]] = {
    "falcon": [({"alibi": True}, "agrees"), ({"partial_rotary_factor": 0.5}, "agrees"), ({"is_causal": False},
        "refused")],
    "hyperclovax": [({"logits_scaling": 0.125}, "agrees"), ({"partial_rotary_factor": 0.5}, "agrees")],
    "cohere2_moe": [
        ({"expert_selection_fn": "sigmoid", "norm_topk_prob": False}, "agrees"),
        ({"num_shared_experts": 1, "shared_expert_combination_strategy": "sum", "rms_norm_eps": 0.1}, "agrees"),
        ({"mlp_layer_types": ["dense", "sparse"], "layer_types": ["full_attention", "sliding_attention"]}, "agrees"),
        ({"layer_types": ABSENT, "mlp_layer_types": ABSENT, "first_k_dense_replace": 1}, "agrees"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": ABSENT}, "refused"),
    ],
    "cohere_compass_text": [({"layer_types": ABSENT}, "refused")],
    "jamba": [({"hidden_act": "relu"}, "refused"), ({"mamba_d_state": 8}, "agrees")],
    "laguna": [
        ({"num_attention_heads_per_layer": [4, 8]}, "agrees"),
        ({"num_attention_heads_per_layer": [8, 4], "head_dim": 4}, "agrees"),
        ({"rope_parameters": ABSENT}, "refused"),
        ({"layer_types": ABSENT}, "refused"),
    ],
    "olmo3": [
        ({"rope_parameters": ABSENT, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "agrees"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": ABSENT}, "refused"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}, "refused"),
    ],
    "ctrl": [({"layer_norm_epsilon": 0.1}, "refused")],
    "gpt_bigcode": [({"multi_query": False}, "refused")],
    "electra": [({"hidden_act": "relu"}, "agrees")],
    "exaone": [({"layer_norm_epsilon": 0.1, "rms_norm_eps": ABSENT}, "agrees")],
    "deepseek_v3": [({"head_dim": 2}, "refused"), ({"rms_norm_eps": ABSENT}, "agrees")],
    "bamba": [({"time_step_limit": [0.7, 0.8]}, "agrees")],
    "mamba2": [({"time_step_limit": [0.7, float("inf")]}, "agrees"), ({"time_step_limit": [0.0, 0.1]}, "agrees")],
    "nemotron_h": [({"time_step_min": 0.9}, "agrees"), ({"mtp_layers_block_type": ["moe"]}, "agrees"),
        ({"hybrid_override_pattern": "ME*-"}, "agrees")],
    "deepseek_v4": [
        ({"head_dim": 16}, "agrees"), ({"qk_rope_head_dim": 8}, "agrees"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "refused"),
        ({"rope_parameters": ABSENT, "partial_rotary_factor": ABSENT, "qk_rope_head_dim": 2}, "agrees"),
        ({"rope_parameters": {"main": {"rope_type": "proportional"}, "compress": {}}}, "refused"),
        ({"rope_parameters": {"main": {"partial_rotary_factor": 0.25}, "compress": {"rope_theta": 1e3}}}, "refused"),
    ],
    "gemma4_text": [
        ({"hidden_act": "relu"}, "agrees"),  # which is the activation of its encoders
        ({"layer_types": ["full_attention", "sliding_attention"]}, "agrees"),
        ({"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
            for kind in ("full_attention", "sliding_attention")}}, "agrees"),
    ],
    "qwen2_moe": [
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, "refused"),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "use_sliding_window": True},
            "agrees"),
        ({"sliding_window": 0, "use_sliding_window": True, "layer_types": ABSENT, "max_window_layers": 1}, "refused"),
        ({"sliding_window": 0}, "agrees"),  # as its class writes without windows
    ],
    "starcoder2": [({"sliding_window": 0}, "refused")],
    "hrm_text": [({"sliding_window": 4}, "refused")],
    "lfm3": [({"partial_rotary_factor": 0.5}, "agrees")],
    "gemma3_text": [({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": ABSENT}, "refused"),
        ({"rope_parameters": ABSENT, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "agrees")],
    "olmo_hybrid": [({"rope_parameters": {"full_attention": {"rope_theta": 100.0}}}, "refused")],
    "bloom": [({"num_attention_heads": 2}, "refused"), ({"num_attention_heads": 4}, "agrees")],
    "hy_v4": [({"hidden_act": "gelu"}, "refused")],
    "hy_v3": [({"rope_parameters": {"full_attention": {"rope_theta": 30.0}}}, "refused")],
    "longcat_flash": [({"head_dim": 2}, "refused")],
    "exaone4": [
        ({"original_max_position_embeddings": 8, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "agrees"),
    ],
    "dots3_note_text": [
        ({"rope_parameters": {kind: {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 0.5,
            "partial_rotary_factor": 0.5} for kind in ("indexed_attention", "sliding_attention")}}, "agrees"),
        ({"rope_parameters": {"indexed_attention": {"rope_type": "proportional"},
            "sliding_attention": {"rope_type": "default"}}}, "refused"),
        ({"swa_num_attention_heads": 8}, "agrees"),  # beside `per_layer_config`, which counts
        ({"use_sliding_window": False}, "agrees"),  # beside `layer_types`, which count
    ],
    # two names of one attribute
    "bailing_hybrid": [({"n_group": 2}, "refused"), ({"num_expert_group": 2}, "agrees"),
        ({"rope_parameters": ABSENT, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "agrees")],
    "recurrent_gemma": [({"sliding_window": 4}, "refused"), ({"attention_window_size": 4}, "agrees")],
    "modernbert-decoder": [({"rope_parameters": ABSENT, "rope_theta": 100.0}, "agrees"),
        ({"rope_parameters": ABSENT, "rope_scaling": {"type": "linear", "factor": 2.0}}, "agrees")],
    "olmoe": [({"sliding_window": 4}, "refused"), ({"rms_norm_eps": ABSENT}, "agrees")],
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """Warnings of the libraries, on configurations that nobody uses, and ours of families that are inferred."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", every(4, SCORE))
def test_a_key_means_what_it_means_to_its_class(kind: str, tmp_path: Path) -> None:
    small = SmallModel(kind, tmp_path)
    for values, status in SCORE[kind]:
        with case(kind, values):
            result = small.outcome(*(Change((key,), value) for key, value in values.items()))
            assert result.status == status, result.said
            assert status == "agrees" or next(iter(values)) in result.said


@pytest.mark.slow
@pytest.mark.parametrize("kind", tried_types())
def test_no_key_of_any_class_differs_in_silence(kind: str, tmp_path: Path) -> None:
    results = list(SmallModel(kind, tmp_path).outcomes())
    assert len(results) > 60
    assert [f"{' '.join(map(str, one.changes))}: {one.said}" for one in results if one.status == "differs"] == []


def check_rows(kinds: list[str]) -> None:
    """The rows of the installed release; one between those that are known has no rows of its own to be held to."""
    release = release_of(transformers.__version__)
    assert release <= releases()[-1], "run python -m tests.helpers.class_keys"
    if release in releases():
        every, written = universe(types()), class_keys(release)
        assert sorted(written) == types()
        for kind in kinds:
            classes, keys = row(kind, every)
            assert written[kind] == (tuple(classes), keys), f"{kind}: run python -m tests.helpers.class_keys"


def test_the_table_of_keys_is_that_of_the_installed_transformers() -> None:
    check_rows(["codegen", "falcon", "gemma3_text", "llama", "olmo3"])


@pytest.mark.slow
def test_every_row_of_the_table_is_that_of_the_installed_transformers() -> None:
    check_rows(list(class_keys(release_of(transformers.__version__))))


def test_a_key_that_releases_read_otherwise_is_named_where_the_older_is_installed(tmp_path: Path) -> None:
    """5.23's class of CodeGen looks at `n_ctx`, 5.24's does not; neither makes anything else of a model."""
    small, version = SmallModel("codegen", tmp_path), transformers.__version__
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ReadOtherwise)
        read_hf_spec(small.folder)
    said = [str(one.message) for one in told if one.category is ReadOtherwise]
    is_between = releases()[0] <= release_of(version) < (5, 24)
    assert [f"reads n_ctx otherwise than {version}" in one for one in said] == [True] * is_between
    assert small.outcome(Change(("n_ctx",), 8)).status == "agrees"


def test_rounding_excuses_nothing_in_a_usual_model(tmp_path: Path) -> None:
    """Only a model that amplifies roundings may differ by more than 1e-5."""
    small = SmallModel("llama", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(small.folder)
    assert ROUNDINGS * condition(model, small.theirs) < EXACT
