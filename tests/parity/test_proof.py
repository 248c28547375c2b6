"""Readings by names and shapes are proved by a small model: wrong layouts are planted, and are corrected or refused."""

import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.convert import proof
from archetype.convert.hf_folder import read_model
from archetype.convert.infer import proofs
from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.quirks import QUIRKS
from archetype.convert.infer.spellings import LAYOUTS
from archetype.errors import CheckpointError, SpecError, UnknownFamily
from archetype.io.yaml import read_mapping
from tests.conftest import ROOT
from tests.helpers.examples import every
from tests.helpers.published import EXACT
from tests.helpers.weights import distance
from tests.helpers.zoo import TASKS, page_of, proved_by_pages, write_small

SETTLES = re.compile(r'settle\(\s*"(\w+)"|_in_columns\(info, "(\w+)"\)')


@pytest.fixture(autouse=True)
def nothing_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither by the tests nor by what an earlier run has kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(proofs, "proved_types", dict)
    proofs._kept.cache_clear()
    yield
    proofs._kept.cache_clear()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        answer: torch.Tensor = TASKS["causal"].ours(model)
    return answer


def load(folder: Path, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return archetype.load(folder, **settings)


def small(kind: str, folder: Path) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return write_small(kind, folder)


# --- the table of types that the tests prove


def test_the_table_of_proved_types_is_that_of_the_pages() -> None:
    version, proved = proved_by_pages()
    table = json.loads(proofs.FILE.read_bytes())
    assert table[version] == proved and len(proved["causal"]) > 100
    assert f"transformers {version}" in page_of("causal").read_text(encoding="utf-8")


def test_each_layout_that_is_asked_for_can_be_set_and_no_other_has_a_name() -> None:
    sources = [*(ROOT / "archetype/convert/infer").glob("*.py"), *(ROOT / "archetype/parts").glob("*/infer.py")]
    names = {name for file in sources for pair in SETTLES.findall(file.read_text()) for name in pair if name}
    assert names == LAYOUTS


# --- what the code of published types fixes, forgotten

KNOWN = sorted({*QUIRKS} & {*CONFIG_MAPPING} & {*json.loads(proofs.FILE.read_bytes())["5.23.0"]["causal"]})


@pytest.mark.parametrize("kind", every(24, KNOWN))
def test_a_published_type_whose_habits_nobody_knows_is_read_rightly_or_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 types each, what `QUIRKS` says of it is left out, as if transformers had it since yesterday."""
    expected = small(kind, tmp_path / "model")
    monkeypatch.delitem(QUIRKS, kind)
    try:
        model = load(tmp_path / "model").model
    except CheckpointError as error:
        said = ("does not match transformers", "cannot verify", "missing", "not supported")
        assert any(one in str(error) for one in said)
        return
    assert distance(logits(model), expected) < EXACT


# --- each alternative of each layout, planted

# Together they depend on every layout that a class of transformers can show.
PLANTED = (
    "gpt_neox", "cohere", "glm", "phi", "qwen3_next", "granitemoeshared", "lfm2_moe", "kolibri1", "llama4_text",
    "gpt_neo", "vaultgemma", "nanochat", "hunyuan_v1_dense", "xlm-roberta", "hyperclovax", "opt", "laguna", "codegen",
    "minicpm3", "falcon_mamba",
)  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, layout: str, value: str) -> None:
    """Have the reader assume another layout than it does."""
    settle = CheckpointInfo.settle

    def planted(self: CheckpointInfo, name: str, values: tuple[Any, ...], why: str) -> Any:
        if name == layout:
            values = tuple(sorted(values, key=lambda one: str(one).lower() != value))
        return settle(self, name, values, why)

    monkeypatch.setattr(CheckpointInfo, "settle", planted)


@pytest.mark.parametrize("kind", every(10, PLANTED))
def test_each_planted_alternative_of_each_layout_is_corrected_or_refused(kind: str, tmp_path: Path) -> None:
    """Every other value of every layout of a type is assumed once; what computes the same is no fault."""
    expected = small(kind, tmp_path / "model")
    values = read_mapping(tmp_path / "model" / "config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (tmp_path / "small").mkdir()
        model = proof.SmallModel(tmp_path / "small", values)
        right = proof.settle_by(model, {})
        assert not right.fault
        outcomes = {"corrected": 0, "refused": 0, "same": 0}
        for layout, others in model.alternatives(right.taken).items():
            for other in others:
                with pytest.MonkeyPatch.context() as patch:
                    plant(patch, layout, other)
                    outcomes[one_planted(model, layout, other, tmp_path / "model", expected)] += 1
    assert outcomes["corrected"] > 0
    print(kind, outcomes)


def one_planted(model: proof.SmallModel, layout: str, other: str, folder: Path, expected: torch.Tensor) -> str:
    try:
        wrong = model.difference([])
    except proof.Unprovable:
        wrong = float("inf")  # the tensors contradict it by themselves
    if wrong < EXACT:
        return "same"
    try:
        proved = proof.settle_by(model, {})
    except proof.Unprovable:
        return "refused"
    if proved.fault:
        return "refused"
    words = [f"{name}={json.dumps(value)}" for name, value in proved.taken.items()]
    assert words, f"{layout}={other} is off by {wrong:.1e} and was taken"
    with pytest.warns(UnknownFamily):
        _, loaded = read_model(folder, overrides=words)
    assert distance(logits(loaded), expected) < EXACT, (layout, other)
    return "corrected"


# --- at load

NEW = [kind for kind in ("sarvam_moe",) if kind in CONFIG_MAPPING]  # of transformers 5.24


@pytest.mark.parametrize("kind", ["gpt_neox", *NEW])
def test_a_wrong_order_of_a_fused_projection_is_corrected_once_and_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sarvam's tensors have the names of GPT-NeoX's and another order; of GPT-NeoX the order is planted."""
    expected = small(kind, folder := tmp_path / "model")
    if kind == "gpt_neox":
        plant(monkeypatch, "fused_order", "qkv")
        with pytest.warns(UnknownFamily, match="not proved"):
            _, wrong = read_model(folder)
        assert distance(logits(wrong), expected) > 0.1
    with pytest.warns(UnknownFamily, match=r"agrees with transformers \S+ as a small model"):
        lm = archetype.load(folder)
    assert distance(logits(lm.model), expected) < EXACT
    monkeypatch.setattr(proof, "prove", None)  # nothing is compared again
    proofs._kept.cache_clear()
    assert distance(logits(load(folder).model), expected) < EXACT


def test_what_the_user_sets_is_compared_and_refused_where_it_differs(tmp_path: Path) -> None:
    expected = small("gpt_neox", folder := tmp_path / "model")
    with pytest.raises(CheckpointError) as caught:
        load(folder, overrides=["fused_order=qkv"])
    assert "does not match transformers" in str(caught.value) and "blocks.0.mixer" in str(caught.value)
    assert str(caught.value).endswith("remove --set fused_order=qkv")
    assert distance(logits(load(folder, overrides=["fused_order=qkv_per_head"]).model), expected) < EXACT
    with pytest.raises(SpecError, match="is not a possible layout of this model; use qkv_per_head, qkv or"):
        load(folder, overrides=["fused_order=kqv"])
    with pytest.raises(SpecError, match="w1_is_gate: does not affect this gpt_neox model"):
        load(folder, overrides=["w1_is_gate=false"])


def test_a_change_of_the_specification_is_the_users_word(tmp_path: Path) -> None:
    small("gpt_neox", folder := tmp_path / "model")
    assert load(folder, overrides=["layers[*].mixer.position.theta=7.0"]).spec.layers[0].mixer.position.theta == 7.0


def test_a_change_of_the_specification_may_be_what_agrees_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = small("cohere", folder := tmp_path / "model")
    monkeypatch.delitem(QUIRKS, "cohere")
    monkeypatch.setattr(proof, "TRIALS", 0)
    neighbours = ["layers[*].mixer.position.interleaved=true"]
    assert distance(logits(load(folder, overrides=neighbours).model), expected) < EXACT
    with pytest.raises(CheckpointError, match=r"does not match transformers .* differs by .*; no known layout agrees"):
        load(folder, accept_unproved=True)


def test_what_only_a_class_says_is_read_and_proved() -> None:
    """LLaVA 1.5's text section names no base of rotary positions and no number of heads, which are Llama's defaults."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    vision = {"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "patch_size": 14}
    vision |= {"intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24, "vocab_size": 32000}
    values = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    values |= {"vision_config": vision, "image_token_index": 32000, "vision_feature_layer": -2}
    proved = proof.prove(values, {})
    assert not proved.taken and not proved.fault


def named(folder: Path, model_type: str, architecture: str) -> Path:
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": model_type, "architectures": [architecture], "auto_map": {"AutoModel": "code.py"}}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_what_nothing_can_prove_is_refused_with_all_that_it_assumes_unless_that_is_accepted(tmp_path: Path) -> None:
    """As Ling's files are: the tensors of GPT-NeoX under a type that transformers lacks, and with code of their own."""
    expected = small("gpt_neox", tmp_path / "model")
    folder = named(tmp_path / "model", "bailing_moe", "BailingMoeForCausalLM")
    with pytest.warns(UnknownFamily) as told, pytest.raises(CheckpointError) as caught:
        archetype.load(folder)
    assert "cannot verify how bailing_moe was imported: transformers 5." in str(caught.value)
    assert str(caught.value).endswith("and import with --accept-unproved")
    (line,) = [str(one.message) for one in told]
    for assumed in ("fused_order=qkv_per_head (or qkv, qvk_per_quarter", "interleaved=false (or true", "unit_offset="):
        assert assumed in line
    accepted = load(folder, accept_unproved=True)
    assert distance(logits(accepted.model), expected) < EXACT
    other = load(folder, accept_unproved=True, overrides=["fused_order=qkv"])
    assert distance(logits(other.model), expected) > 0.1
    accepted.save(tmp_path / "run")
    archetype.load(tmp_path / "run")  # a run is what it was imported as
    with pytest.warns(UnknownFamily, match="not proved: sizes and costs depend on nothing that is assumed"):
        archetype.cost_report(folder)


def test_without_transformers_proved_types_are_read_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = small("gpt_neox", folder := tmp_path / "model")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        CheckpointError, match="cannot verify how gpt_neox was imported: transformers: is not installed"
    ):
        load(folder)
    monkeypatch.setattr(proofs, "proved_types", lambda: {"5.23.0": {"causal": ["gpt_neox"]}})
    with pytest.warns(UnknownFamily, match="agrees with transformers 5.23.0 in the tests"):
        lm = archetype.load(folder)
    assert distance(logits(lm.model), expected) < EXACT


def test_a_damaged_record_is_made_anew(tmp_path: Path) -> None:
    expected = small("gpt_neox", folder := tmp_path / "model")
    load(folder)
    (record,) = (tmp_path / "cache" / "archetype" / "proofs").iterdir()
    for text in ("", "[]", '{"by": 3, "odd": 1}'):
        record.write_text(text)
        proofs._kept.cache_clear()
        assert distance(logits(load(folder).model), expected) < EXACT
    assert json.loads(record.read_text())["fault"] == ""


@pytest.mark.parametrize("place", ["{0}", "{0}: lm_head.weight", "{0}/config.json: model_type"])
def test_no_reason_names_the_folder_of_the_small_model(place: str, tmp_path: Path) -> None:
    """It is gone when a user reads the reason."""
    small = object.__new__(proof.SmallModel)
    small.folder = tmp_path
    reason = small._without_folder(CheckpointError(place.format(tmp_path), "has another shape", "check it"))
    assert str(tmp_path) not in reason and reason.endswith("has another shape") and not reason.startswith((":", "/"))
