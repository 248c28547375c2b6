"""Decoders of families that are not registered: read by what their files show, and said what that rests on."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.convert.infer import read_unknown
from archetype.convert.infer.quirks import QUIRKS
from archetype.convert.infer.small import make_small
from archetype.convert.source import open_spec, read_hf_spec
from archetype.errors import ArchetypeError, CheckpointError, SpecError, UnknownFamily, UnreadKeys
from archetype.families import published
from archetype.families.family import InferenceReport
from archetype.models.build import build
from tests.helpers.weights import randomize

TEXT = torch.arange(12)[None] % 31
INTERLEAVED = "layers[*].mixer.position.interleaved"


def model(family: str = "llama", **changes: Any) -> LanguageModel:
    tiny = spec.parse(archetype.load_spec(f"{family}-tiny").dump()).replace(vocab_size=31, context_length=32, **changes)
    return LanguageModel(tiny, randomize(build(tiny)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama under the name of a family that nobody knows."""
    archetype.export(model(), tmp_path / "model", family="llama")
    return renamed(tmp_path / "model", "mystery")


def renamed(folder: Path, model_type: str, **changes: Any) -> Path:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"model_type": model_type} | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
    return folder


def retensored(folder: Path, change: Any) -> Path:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def read(folder: Path, *changes: str) -> LanguageModel:
    with pytest.warns(UnknownFamily):
        return archetype.load(folder, accept_unproved=True, overrides=changes)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        archetype.load(folder, accept_unproved=True)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder / 'config.json'}: ")


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral", "mixtral", "gpt2", "bloom", "deepseek-v2"])
def test_a_known_design_under_an_unknown_name_is_read_exactly(tmp_path: Path, family: str) -> None:
    lm = model(family)
    archetype.export(lm, tmp_path / "model")
    # what no file says of these: Bloom's fading scores and activation, that Mixtral's weights sum to one
    said = {
        "bloom": {"alibi": True, "hidden_act": "gelu_pytorch_tanh"},
        "mixtral": {"norm_topk_prob": True},
        "deepseek-v2": {"rope_interleave": True},
    }
    inferred = read(renamed(tmp_path / "model", "mystery", **said.get(family, {})))
    with torch.no_grad():
        expected, actual = lm.model(TEXT).logits, inferred.model(TEXT).logits
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()


def test_the_reading_says_what_it_rests_on(folder: Path) -> None:
    renamed(folder, "mystery", depth_of_thought=7, rope_theta=500_000.0, rope_parameters=...)
    family, model_spec = read_hf_spec(folder, warn=False)
    reading = family.reading
    assert reading is not None and family.name == "mystery"
    assert {"num_attention_heads", "rms_norm_eps", "rope_theta", "max_position_embeddings"} <= set(reading.recognized)
    assert reading.tensors == len(load_file(folder / "model.safetensors"))
    assert {"interleaved", "unit_offset", "parallel"} <= {item.split("=")[0] for item in reading.assumed}
    assert reading.alternatives["interleaved"] == ("true",) and not reading.proof
    assert reading.unknown == ("depth_of_thought=7",) and reading.left_out == ()
    assert model_spec.layers[0].mixer.position.theta == 500_000.0
    with pytest.warns(UnknownFamily) as told:
        open_spec(folder)
    (line,) = [str(one.message) for one in told]
    assert line.startswith(f"{folder}: mystery is not a registered family; inferred from ") and "\n" not in line
    assert "interleaved=false (or true; " in line and "keys not understood: depth_of_thought=7" in line
    assert "--set NAME=VALUE" in line
    assert "not proved: sizes and costs depend on nothing that is assumed" in line


def test_a_notebook_shows_the_report_as_a_table() -> None:
    report = InferenceReport(("hidden_size",), 3, ("norm=<b>",), (), (), ("a.b & c",))
    html = report._repr_html_()
    assert html.startswith("<table>") and html.count("<tr>") == 1 + 5
    assert "norm=&lt;b&gt;" in html and "a.b &amp; c" in html and "<b>" not in html


def test_values_out_of_a_file_cannot_steer_the_terminal(folder: Path) -> None:
    renamed(folder, "mystery\n\x1b[31m", odd="\x1b[2J" + "x" * 1000)
    with pytest.warns(UnknownFamily) as told:
        open_spec(folder)
    line = str(told[0].message)
    assert line.isprintable() and len(line) < 1000


def test_what_was_assumed_is_settled_by_a_change(folder: Path) -> None:
    halves, neighbours = read(folder), read(folder, f"{INTERLEAVED}=true")
    assert not halves.spec.layers[0].mixer.position.interleaved
    assert neighbours.spec.layers[1].mixer.position.interleaved
    with torch.no_grad():
        assert (halves.model(TEXT).logits - neighbours.model(TEXT).logits).abs().max() > 1e-3
    assert all(map(torch.equal, halves.model.parameters(), neighbours.model.parameters()))


def test_a_change_that_the_tensors_contradict_is_refused(folder: Path) -> None:
    for change, place in (("layers[*].feedforward.d_ff=7", "mlp"), ("num_layers=1", "num_layers")):
        with pytest.warns(UnknownFamily), pytest.raises(CheckpointError, match=place):
            archetype.load(folder, accept_unproved=True, overrides=[change])
    with pytest.warns(UnknownFamily), pytest.raises(SpecError, match="d_modle"):
        archetype.load(folder, accept_unproved=True, overrides=["d_modle=3"])


def test_a_change_is_also_made_to_a_family_that_is_known(folder: Path) -> None:
    renamed(folder, "llama")
    lm = archetype.load(folder, accept_unproved=True, overrides=["layers[*].mixer.position.theta=77.0"])
    assert lm.spec.layers[0].mixer.position.theta == 77.0


def test_a_run_takes_no_changes(tmp_path: Path) -> None:

    model().save(tmp_path / "run")
    with pytest.raises(SpecError, match="the specification of a run cannot be changed"):
        archetype.load(tmp_path / "run", overrides=["d_model=3"])


@pytest.mark.parametrize(
    ("left_out", "assumed", "value"),
    [
        ("num_attention_heads", "layers[*].mixer.num_heads", 2),
        ("max_position_embeddings", "context_length", 2048),
        ("hidden_act", "layers[*].feedforward.activation", "silu"),
        ("rms_norm_eps", "layers[*].wiring.norm.eps", 1e-5),
        ("rope_theta", "layers[*].mixer.position.theta", 10_000.0),
    ],
)
def test_what_no_key_says_is_assumed(folder: Path, left_out: str, assumed: str, value: Any) -> None:
    rotary = {"rope_parameters": {"rope_type": "default"}}  # which says the theta, too, where it is written
    renamed(folder, "mystery", **{left_out: ..., "head_dim": ..., "num_key_value_heads": ...} | rotary)
    family, model_spec = read_hf_spec(folder, warn=False)
    assert any(item.startswith(f"{assumed}={value} (") for item in family.reading.assumed)
    first = model_spec.layers[0]
    read = first.mixer.num_heads, first.wiring.norm.eps, first.mixer.position.theta, first.feedforward.activation.kind
    assert value in (model_spec.context_length, *read)


def test_a_tensor_that_nobody_understands_is_refused_by_its_name(folder: Path) -> None:
    def extra(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.thought.weight"] = torch.ones(3, 3)

    retensored(folder, extra)
    expected = "model.layers.1.thought.weight: belongs to an unknown part; mystery is not supported"
    assert refusal(folder) == expected


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        ("model.layers.0.self_attn.A_log", "an unknown recurrent or state-space mixer"),
        ("model.layers.0.attn.attn_sink", "an unknown form of attention sinks"),
        ("model.layers.0.self_attn.sqk", "learned factors of queries, gates and hidden features (nGPT)"),
        ("model.layers.0.attn.compressor.ape", "compressed keys and values"),
        ("model.layers.0.hc_mixer_base", "a residual wiring with unknown tensor names"),
        ("model.layers.0.mlp.up_embed.weight", "single-neuron experts selected by product keys"),
        ("model.layers.0.self_attn.k_sconv.weight_proj", "convolutions with token-dependent weights"),
        ("model.layers.0.mlp.act_fn.gamma", "an activation with learned parameters"),
        ("model.layers.0.mlp.inner_norm.weight", "a norm at an unknown position"),
    ],
)
def test_what_is_refused_names_the_part_that_is_missing(folder: Path, tensor: str, part: str) -> None:
    retensored(folder, lambda tensors: tensors.update({tensor: torch.ones(64)}))
    assert refusal(folder) == f"{tensor}: needs {part}, which is not supported; mystery models cannot be read"


def test_every_missing_part_is_named_as_far_as_a_line_has_room(folder: Path) -> None:
    names = ("self_attn.sqk", "attn_sink_proj.weight", "compressor.ape", "act_fn.gamma", "mask_emb")
    tensors = {f"model.layers.0.{name}": torch.ones(64) for name in names}
    retensored(folder, lambda known: known.update({name: tensors[name] for name in list(tensors)[:2]}))
    assert "needs learned factors of queries, gates and hidden features (nGPT) and attention sinks" in refusal(folder)
    retensored(folder, lambda known: known.update(tensors))
    assert re.search(r"needs .*, .*and 2 further parts, which are not supported", refusal(folder))


def test_a_tensor_that_parts_here_explain_does_not_hide_the_missing_part(folder: Path) -> None:
    """Sinks are here, and learned rates of a residual too: other tensors of the file say what is missing."""
    gains, keys = "model.layers.0.self_attn.sqk", "model.layers.1.attn.compressor.ape"
    retensored(
        folder, lambda tensors: tensors.update({gains: torch.ones(64), "model.layers.0.lambda_1": torch.ones(64)})
    )
    assert refusal(folder).startswith(f"{gains}: needs learned factors")
    retensored(folder, lambda tensors: (tensors.pop(gains), tensors.pop("model.layers.0.lambda_1")))
    retensored(
        folder, lambda tensors: tensors.update({keys: torch.ones(4, 4), "model.layers.0.attn.attn_sink": torch.ones(4)})
    )
    assert refusal(folder).startswith(f"{keys}: needs compressed keys")


def test_a_bias_of_a_gate_that_is_absent_is_refused(folder: Path) -> None:
    retensored(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.gate_bias": torch.ones(4)}))
    assert refusal(folder).startswith("model.layers.0: needs a gate bias without a gate")


def test_a_head_with_more_outputs_than_the_table_has_rows_is_refused(folder: Path) -> None:
    """With fewer, as Mllama has them, the further rows are of ids that are never predicted."""

    def longer(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = torch.cat(2 * [tensors["model.embed_tokens.weight"]])

    retensored(folder, longer)
    assert refusal(folder).startswith("lm_head.weight: needs a head with ")


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "RobertaModel", "RobertaForSequenceClassification"])
def test_what_is_no_decoder_is_not_read_as_one(folder: Path, name: str) -> None:
    """The same tensors would make a decoder, in which no token sees a later one."""
    assert refusal(renamed(folder, "mystery", architectures=[name])) == (
        f"architectures: {name!r} is not a text decoder with a head; other models need a registered family"
    )


def test_no_bias_is_lost_as_if_it_were_a_mask(tmp_path: Path) -> None:
    """Older files keep a mask under the name attn.bias; a bias of c_attn is none."""
    archetype.export(model("gpt2"), tmp_path / "model")

    def older(tensors: dict[str, torch.Tensor]) -> None:
        name = next(name for name in tensors if name.endswith("h.0.attn.c_attn.bias"))
        before = name.removesuffix("c_attn.bias")
        tensors |= {f"{before}bias": torch.ones(1, 1, 32, 32), f"{before}masked_bias": torch.tensor(-1e4)}

    family, _ = read_hf_spec(retensored(renamed(tmp_path / "model", "mystery"), older), warn=False)
    left_out = [name.rpartition(".h.")[2] for name in family.reading.left_out]
    assert left_out == ["0.attn.bias", "0.attn.masked_bias"]


def test_a_layer_that_is_missing_and_a_head_that_is_are_named(folder: Path) -> None:
    def without(part: str) -> Any:
        return lambda tensors: [tensors.pop(name) for name in list(tensors) if part in name]

    retensored(folder, lambda tensors: tensors.update({"model.layers.7.mlp.up_proj.weight": torch.ones(3, 3)}))
    assert refusal(folder) == "model.layers.2: no tensor belongs to this layer; is the checkpoint complete?"
    retensored(folder, without("layers.7"))
    retensored(renamed(folder, "mystery", tie_word_embeddings=False), without("lm_head"))
    with pytest.warns(UnknownFamily), pytest.raises(CheckpointError, match="lm_head"):
        archetype.load(folder, accept_unproved=True)
    retensored(folder, without("embed_tokens"))
    assert refusal(folder) == "no tensor is a token embedding; is this a decoder?"


def test_it_is_read_from_shards_and_without_its_numbers(folder: Path, tmp_path: Path) -> None:
    lm = read(folder)
    archetype.export(lm, tmp_path / "shards", family="llama", shard_bytes=10_000)
    assert json.loads((tmp_path / "shards" / "config.json").read_text())["model_type"] == "llama"
    renamed(tmp_path / "shards", "mystery")
    with pytest.warns(UnknownFamily):
        assert open_spec(tmp_path / "shards") == lm.spec


ODD_VALUES = [None, True, 0, -1, 2.5, 1e40, float("nan"), "x", [], ["x", "y"], {"a": 1}]
ODD_SHAPES = [(), (0,), (64,), (0, 0), (3, 64), (64, 3), (2, 3, 4), (2**40, 2**40)]
KEYS = (
    "alibi", "attention_multiplier", "clip_qkv", "dim_model_base", "final_logit_softcapping", "layer_types",
    "logits_scaling", "max_window_layers", "n_group", "no_rope_layers", "partial_rotary_factor",
    "query_pre_attn_scalar", "residual_multiplier", "rope_interleave", "rope_parameters", "rope_scaling",
    "rotary_dim", "scale_depth", "scale_embedding", "scoring_func", "sliding_window", "text_config", "topk_group",
    "use_parallel_residual", "use_sliding_window", "architectures", "norm_topk_prob", "tie_word_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["share", "every"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral", "deepseek-v2"])
def test_whatever_a_file_says_is_read_or_refused_in_one_line(tmp_path: Path, family: str, every: bool) -> None:
    """A third of the values of a Llama's keys, and every ninth of the other families; all of them in the soak."""
    archetype.export(model(family), tmp_path / "model")
    values = json.loads((tmp_path / "model" / "config.json").read_text()) | {"model_type": "mystery"}
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    # the second layer's attention and all experts but one are like the first
    odd = [name for name in shapes if not re.match(r".*(layers|h)\.1\..*att.*|.*experts\.[1-9]\d*\..*", name)]
    cases = [(values | {key: value}, shapes) for key in (*values, *KEYS) for value in ODD_VALUES]
    cases += [(values, shapes | {name: shape}) for name in odd for shape in ODD_SHAPES]
    cases += [(values, {name: shape for name, shape in shapes.items() if name != left_out}) for left_out in odd]
    cases += [(values, shapes | {f"{name.rpartition('.')[0]}.odd": (3,)}) for name in odd]
    read = 0
    cases = cases if every else cases[:: 3 if family == "llama" else 9]
    for config, tensor_shapes in cases:
        try:
            family_of_one = read_unknown(config, tensor_shapes)
            family_of_one.format.rules_for(family_of_one.format.spec_from(dict(config)))
            read += 1
        except ArchetypeError as error:
            assert "\n" not in str(error)
    assert 0 < read < len(cases)


def same_files(one: Path, other: Path) -> None:
    assert json.loads((one / "config.json").read_text()) == json.loads((other / "config.json").read_text())
    before, after = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype and torch.equal(tensor, after[name]), name


def through_a_run(lm: LanguageModel, folder: Path) -> LanguageModel:
    lm.save(folder)
    return archetype.load(folder, accept_unproved=True)


def test_what_was_read_is_written_back_as_it_was(folder: Path, tmp_path: Path) -> None:
    """With what has no use here, and with a correction of what was assumed; directly and through a run directory."""
    renamed(folder, "mystery", depth_of_thought=7, torch_dtype="float32", dtype=..., vision_config={"size": 3})
    retensored(folder, lambda tensors: tensors.update({"vision_tower.patch.weight": torch.arange(6.0).view(2, 3)}))
    lm = read(folder, f"{INTERLEAVED}=true")
    archetype.export(lm, tmp_path / "direct")
    archetype.export(through_a_run(lm, tmp_path / "run"), tmp_path / "again")
    for name in ("direct", "again"):
        same_files(folder, tmp_path / name)
    half = archetype.load(tmp_path / "run", dtype="bfloat16")
    archetype.export(half, tmp_path / "half")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert config["torch_dtype"] == "bfloat16" and "dtype" not in config


def test_another_specification_is_not_written_under_the_keys_that_were_read(folder: Path, tmp_path: Path) -> None:
    lm = read(folder)
    lm.spec = lm.model.spec = spec.assign(lm.spec, ["final_norm.eps=0.5"])
    with pytest.raises(CheckpointError, match=r"^final_norm.eps: the mystery format cannot express 0.5 here"):
        archetype.export(lm, tmp_path / "out")
    read(folder).save(tmp_path / "run")
    file = tmp_path / "run" / "spec.yaml"
    file.write_text(file.read_text().replace("softcap: null", "softcap: 3.0") + "\nname: other\n")
    file.write_text(re.sub(r"context_length: \d+", "context_length: 16", file.read_text()))
    with pytest.raises(CheckpointError, match=r"^context_length: the mystery format cannot express 16 here"):
        archetype.export(archetype.load(tmp_path / "run"), tmp_path / "out")


def test_long_names_and_values_of_a_folder_are_cut(folder: Path) -> None:
    """Of keys, types, tensors and shards, for a registered family and for another."""
    long, config = "x" * 5000, json.loads((folder / "config.json").read_text())
    changes = [{"model_type": long}, {"hidden_act": long}, {"rope_parameters": long}, {"hidden_size": long},
               {"architectures": [long]}, {long: 1}, {"rope_parameters": {"rope_type": long}}, {"hidden_act": [long]},
               {"vocab_size": int("9" * 4000)}, {"model_type": [long]}, {"num_attention_heads": {long: 1}}]  # fmt: skip
    cases = [({**config, "model_type": kind, **change}, {}) for kind in ("llama", "mystery") for change in changes]
    cases += [({**config, "model_type": kind}, {f"model.{long}.odd": torch.zeros(2)}) for kind in ("llama", "mystery")]
    tensors = load_file(folder / "model.safetensors")
    for values, more in cases:
        (folder / "config.json").write_text(json.dumps(values))
        save_file(tensors | more, folder / "model.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownFamily)
            warnings.simplefilter("ignore", UnreadKeys)
            try:
                archetype.load(folder, accept_unproved=True)
            except ArchetypeError as error:
                text = str(error).replace(str(folder), "FOLDER")
                assert "\n" not in text and len(text) <= 300, text
    (folder / "model.safetensors").unlink()
    for shard in (long, f"../{long}", f"{long}/x"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {long: shard}}))
        with pytest.raises(CheckpointError) as caught:
            archetype.load(folder, accept_unproved=True)
        assert len(str(caught.value).replace(str(folder), "FOLDER")) <= 300


def test_llama_cpp_has_no_place_for_it_but_under_a_family_that_it_knows(folder: Path, tmp_path: Path) -> None:
    """The design is Llama's, so that its GGUF is one of Llama."""
    lm = read(folder)
    archetype.export(lm, tmp_path / "out", format="gguf")
    assert (tmp_path / "out" / "model.gguf").is_file()


@pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
def test_a_damaged_origin_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    read(folder).save(tmp_path / "run")
    file = tmp_path / "run" / "origin.json"
    data = json.loads(file.read_text())
    assert data["family"] == "mystery" and data["config"]["model_type"] == "mystery"
    odd = ([1], "x", 7, None, {"a": 1}, [{"hf": 3}], [[]])
    for key, value in [(key, value) for key in data for value in odd]:
        file.write_text(json.dumps(data | {key: value}))
        try:
            archetype.export(archetype.load(tmp_path / "run"), tmp_path / "out" / f"{key}{odd.index(value)}")
        except ArchetypeError as error:
            assert "\n" not in str(error) and len(str(error)) < 400
    for text in ("[", "[]", json.dumps(data)[:-9], '{"family": "mystery", "more": 1}'):
        file.write_text(text)
        with pytest.raises(ArchetypeError, match=r"origin\.json"):
            archetype.load(tmp_path / "run")


def test_an_old_pickle_of_an_unknown_family_is_read_where_that_is_asked_for(folder: Path) -> None:
    expected = read(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.warns(UnknownFamily):
        lm = archetype.load(folder, accept_unproved=True, allow_pickle=True)
    assert all(map(torch.equal, lm.model.parameters(), expected.model.parameters()))


def test_a_registered_family_is_read_without_a_warning(folder: Path) -> None:
    renamed(folder, "llama")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert archetype.load(folder, accept_unproved=True).family.reading is None


def test_no_habit_is_of_a_family_that_is_registered_alone() -> None:
    # registered families are read by their own files; their habits serve models that hold one as their text part, and
    # the decoders that some publish of an encoder or a pair
    text_parts = {"gemma", "gemma2", "gemma3_text", "mixtral", "bloom", "mpt", "deepseek_v2", "mamba", "mamba2"}
    assert {name for name in set(QUIRKS) & set(published()) if published()[name].decodes} <= text_parts


def test_the_small_copy_of_a_state_space_has_as_many_channels_as_it_says() -> None:
    """Other families have networks of any width."""
    sizes = {"hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 64}
    mamba, other = make_small({"expand": 2} | sizes), make_small(sizes)
    assert mamba["intermediate_size"] == 2 * mamba["hidden_size"] != other["intermediate_size"]


def test_the_small_copy_has_a_layer_of_each_kind() -> None:
    """What one kind alone needs would be proved by none of the others."""
    kinds = ["full", "window", "full", "linear"]
    lists = {"layer_types": kinds, "no_rope_layers": [1, 1, 0, 1], "widths": [8, 16, 24, 32]}
    small = make_small({"num_hidden_layers": 4, "num_layers": 4, "n_layer": None} | lists)
    assert small["layer_types"] == kinds and small["no_rope_layers"] == [1, 1, 0, 1]
    assert (small["num_hidden_layers"], small["num_layers"], small["n_layer"]) == (4, 4, None)
    many = make_small({"num_hidden_layers": 6, "layer_types": [*kinds, "full", "full"], "widths": [*range(6)]})
    assert many["layer_types"] == ["full", "window", "linear"] and many["widths"] == [0, 1, 3]
    assert many["num_hidden_layers"] == 3


def test_a_score_function_that_is_no_name_is_refused(tmp_path: Path) -> None:
    archetype.export(model("mixtral"), tmp_path / "model", family="mixtral")
    with pytest.raises(CheckpointError, match=r"scoring_func: needs the score function \['softmax'\] of a router"):
        read_hf_spec(renamed(tmp_path / "model", "mystery", scoring_func=["softmax"]))
