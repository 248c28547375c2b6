"""GGUF files of the architectures in the table of graphs: keys, tensors, and the same model read back."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from archetype import spec
from archetype.convert.gguf.architectures import GGUF
from archetype.convert.gguf.choice import gguf_family, gguf_of, keys_of
from archetype.convert.gguf.file import write_gguf
from archetype.convert.gguf.graphs import ROWS
from archetype.convert.gguf.plain import plain
from archetype.convert.gguf.read import read_gguf
from archetype.errors import CheckpointError
from archetype.families import preset
from archetype.models.build import build
from archetype.spec.edit import assign
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.gguf_specs import SPECS, family_of, type_of
from tests.helpers.weights import distance, randomize

TOKENS = torch.arange(4, 12)[None]
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
SCAN = ("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank")
EXPERT, SHARED, WINDOW = "expert_feed_forward_length", "expert_shared_count", "attention.sliding_window"
LATENT = ("attention.q_lora_rank", "attention.kv_lora_rank")
INDEX = tuple(f"attention.indexer.{key}" for key in ("head_count", "key_length", "top_k"))
MLA = ("attention.key_length_mla", "attention.value_length_mla")
OF_WINDOWS = tuple(f"{key}_swa" for key in (LATENT[1], *MLA))
HRM = ("hrm.layers_per_stack", "hrm.h_cycles", "hrm.l_cycles")
# blocks of our model for a layer of the file
BLOCKS_OF_A_LAYER = {"gemma4_text": 2, "nanbeige": 2, "nanbeige without": 3, "qwen4_exp_text memory": 1.5}
BLOCKS = ("attention.indexer.block_size", "attention.indexer.local_blocks")
MEMORY = (
    "layers", "ngram_size", "heads_per_ngram", "conv_kernel", "eos_token_id", "layer_multipliers", "head_offsets",
    "head_vocab_sizes",
)  # fmt: skip
HYPER = ("count", "epsilon", "magnitude")
# Keys without which llama.cpp reads no file of an architecture, besides those of all (src/models, load_arch_hparams).
NEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "olmo",
            "stablelm",
            "falcon",
            "phi2",
            "starcoder",
            "starcoder2",
            "nemotron",
            "command-r",
            "jais2",
            "orion",
            "codeshell",
            "modern-bert",
            "nomic-bert",
            "bert",
            "jina-bert-v3",
            "jina-bert-v2",
        ),
        (LAYER,),
    ),
    **dict.fromkeys(("granite", "granitemoe"), (RMS, "logit_scale")),
    **dict.fromkeys(("glm4moe", "dots1", "afmoe", "deepseek", "bailingmoe", "deepseek2-ocr"), (RMS, EXPERT, SHARED)),
    **dict.fromkeys(("hunyuan-moe", "minimax-m2", "mellum", "hy_v3"), (RMS, EXPERT)),
    **dict.fromkeys(("deepseek32", "glm-dsa"), (RMS, EXPERT, SHARED, *LATENT, *INDEX)),
    "dots3note": (
        RMS,
        EXPERT,
        SHARED,
        *LATENT,
        *MLA,
        *OF_WINDOWS,
        *INDEX,
        "attention.indexer.types",
        "leading_dense_block_count",
        "expert_gating_func",
        WINDOW,
        f"{WINDOW}_pattern",
        "rope.freq_base_swa",
    ),
    "hrm_text": (RMS, *HRM),
    **dict.fromkeys(("qwen2vl", "qwen3vl", "qwen3vlmoe"), (RMS, "rope.dimension_sections")),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), (*SCAN, "ssm.group_count", LAYER)),
    **dict.fromkeys(("qwen35", "qwen35moe"), (RMS, "rope.dimension_sections", *SCAN, "ssm.group_count")),
    **dict.fromkeys(("mamba2", "qwen3next"), (RMS, *SCAN, "ssm.group_count")),
    "gptneox": (LAYER, "use_parallel_residual"),
    "cohere2": (WINDOW, "logit_scale", LAYER),
    "exaone-moe": (WINDOW, RMS, EXPERT, "expert_gating_func"),
    "granitehybrid": (RMS, *SCAN, "ssm.group_count"),
    "gpt-oss": (RMS, EXPERT, WINDOW),
    "jamba": (RMS, *SCAN),
    "lfm2": (RMS, "shortconv.l_cache"),
    "lfm2moe": (RMS, "shortconv.l_cache", EXPERT, "expert_gating_func"),
    "ernie4_5-moe": (RMS, EXPERT, "interleave_moe_layer_step"),
    "granite_swa": (RMS, "logit_scale", WINDOW, "attention.sliding_window_pattern"),
    "laguna": (RMS, "leading_dense_block_count", EXPERT),
    **dict.fromkeys(("deepseek2", "mistral4"), (RMS, *LATENT, EXPERT, SHARED)),
    "minicpm3": (RMS, *LATENT),
    "plm": (RMS, LATENT[1]),
    "bailingmoe2": (RMS, EXPERT, SHARED, "expert_gating_func"),
    "dbrx": (LAYER, "attention.clamp_kqv"),
    "cohere2moe": (LAYER, WINDOW, "logit_scale", "leading_dense_block_count", EXPERT),
    "llama4": (RMS, EXPERT, "interleave_moe_layer_step"),
    "mimo2": (RMS, EXPERT, WINDOW),
    "kimi-linear": (
        RMS,
        *MLA,
        LATENT[1],
        "ssm.conv_kernel",
        "kda.head_dim",
        EXPERT,
        SHARED,
        "expert_gating_func",
    ),
    "kimi-k3": (
        RMS,
        *MLA,
        LATENT[1],
        "ssm.conv_kernel",
        "kda.head_dim",
        EXPERT,
        SHARED,
        "expert_gating_func",
        "attn_res.block_size",
        "activation.situ_beta",
        "activation.situ_linear_beta",
    ),
    "glm5-next": (
        RMS,
        *MLA,
        *LATENT,
        "ssm.conv_kernel",
        "kda.head_dim",
        EXPERT,
        SHARED,
        *INDEX,
        "attention.indexer.kpool",
        *(f"hyper_connection.{key}" for key in ("count", "sinkhorn_iterations", "epsilon")),
    ),
    "qwen4exp": (
        RMS,
        "rope.dimension_sections",
        *SCAN,
        "ssm.group_count",
        *INDEX,
        "attention.compress_ratios",
        "hyper_connection.count",
        "hyper_connection.low_rank",
    ),
    "falcon-h1": (RMS, *SCAN, "ssm.group_count"),
    "deepseek4": (
        RMS,
        LATENT[0],
        WINDOW,
        EXPERT,
        SHARED,
        "expert_weights_scale",
        "expert_weights_norm",
        "swiglu_clamp_exp",
        *INDEX,
        "attention.output_group_count",
        "attention.output_lora_rank",
        "attention.compress_rope_freq_base",
        "hyper_connection.count",
        "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon",
        "hash_layer_count",
        "expert_gating_func",
    ),
    "gemma4": (
        RMS,
        WINDOW,
        "embedding_length_per_layer_input",
        "attention.key_length_swa",
        "attention.value_length_swa",
    ),
    "gemma-embedding": (RMS, WINDOW),
    "jais": (LAYER, "attention.max_alibi_bias"),
    "maple": (RMS, WINDOW, f"{WINDOW}_pattern", EXPERT, "swiglu_clamp_exp"),
    "muse-glimmer": (RMS, WINDOW, "logit_scale"),
    "step35": (RMS, WINDOW, f"{WINDOW}_pattern", EXPERT),
    "nomic-bert-moe": (LAYER, "moe_every_n_layers"),
    "rwkv7": ("wkv.head_size", *(f"attention.{rank}_lora_rank" for rank in ("decay", "iclr", "value_residual_mix"))),
    "bailingmoe3": (
        RMS,
        *MLA,
        LATENT[1],
        "ssm.conv_kernel",
        "kda.head_dim",
        "kda.gate_lower_bound",
        EXPERT,
        SHARED,
        "leading_dense_block_count",
        "expert_gating_func",
    ),
    "hy_v4": (RMS, *LATENT, *MLA, EXPERT, SHARED, *(f"hyper_connection.{key}" for key in HYPER)),
    "minimax-01": (RMS, "residual_scale"),
    "minimax-m3": (RMS, EXPERT, SHARED, "expert_gating_func", *INDEX, *BLOCKS),
    "t5encoder": (RMS, "attention.relative_buckets_count"),
}
OF_ALL = ("context_length", "embedding_length", "block_count")
# Keys that the `gguf` package of this version does not name yet.
LATER = (
    "attention.recurrent_layers", "attention.value_scale", *INDEX, "attention.indexer.types",
    "attention.compress_rope_freq_base", "attention.compress_ratios", "attention.output_group_count",
    "attention.output_lora_rank", "hyper_connection.count", "hyper_connection.sinkhorn_iterations",
    "hyper_connection.epsilon", "hash_layer_count", "hyper_connection.magnitude", *BLOCKS, "kda.safe_gate",
    "kda.gate_lower_bound", "num_loops", "skip_loop_final_norm", "attn_res.block_size", "activation.situ_beta",
    "activation.situ_linear_beta", "expert_latent_length", "attention.indexer.kpool",
    "attention.indexer.kpool_select_tail", "hyper_connection.low_rank", *(f"ple.{key}" for key in MEMORY),
    *OF_WINDOWS, *HRM,
)  # fmt: skip
# Tensors that llama.cpp reads, where its converter has one of both, or joins them under no name of its table.
HALVES = {"gemma4": ("ffn_gate_exps", "ffn_up_exps"), "rwkv7": ("time_mix_lerp_fused",)}


# Parameters that are no tensors of the file: RoBERTa's first two vectors of positions, and xIELU's numbers of two
# layers; the first layer of RWKV-7 has tensors of its rates twice
UNWRITTEN = {"roberta": 2 * 32, "apertus": 2 * 4, "rwkv7": -(128 + 2 * 6 * 128), "hrm_text": -32}
UNWRITTEN["kimi_k3"] = (10 - 1) * 24  # weights of norms, which queries contain, but for the zeros of the first sublayer


def written(name: str, model_spec: spec.ModelSpec, file: Path) -> tuple[Any, Any]:
    """A random model and the file that was written of it, as the library reads it."""
    model = randomize(build(model_spec)).eval()
    write_gguf(model, family_of(name), None, file)
    return model, gguf.GGUFReader(file)


def outputs(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits, or the vectors of an encoder."""
    output = model(tokens)
    result: torch.Tensor = output.hidden if output.logits is None else output.logits
    return result


def known_keys(architecture: str) -> set[str]:
    """All keys that the library has a name for."""
    groups = [vars(group).values() for group in vars(gguf.Keys).values() if isinstance(group, type)]
    return {value.replace("{arch}", architecture) for values in groups for value in values if isinstance(value, str)}


def test_every_row_has_a_model() -> None:
    rows = {target.architecture for target in ROWS.values()}
    assert rows - {gguf_of(type_of(name), model).architecture for name, model in SPECS.items()} == {"mamba"}


@pytest.mark.parametrize("name", every(6, SPECS))
@torch.no_grad()
def test_a_file_is_read_as_the_same_model(name: str, tmp_path: Path) -> None:
    model, file = written(name, SPECS[name], tmp_path / "model.gguf")
    target = gguf_of(type_of(name), model.spec)
    architecture, keys = target.architecture, {field for field in file.fields if not field.startswith("GGUF.")}
    needed = {f"{architecture}.{key}" for key in (*OF_ALL, *NEEDED.get(architecture, (RMS,)))}
    assert needed <= keys
    assert keys <= known_keys(architecture) | {f"{architecture}.{key}" for key in LATER}
    blocks = BLOCKS_OF_A_LAYER.get(name, 1)
    sizes = {"block_count": model.spec.num_layers // blocks, "embedding_length": model.spec.d_model}
    for key, value in sizes.items():
        assert file.get_field(f"{architecture}.{key}").contents() == value
    if architecture in gguf.MODEL_ARCH_NAMES.values():  # a later architecture has no table
        arch = next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
        places = {place for _, place in gguf.get_tensor_name_map(arch, model.spec.num_layers).mapping.values()}
        bare = {re.sub(r"\.(weight|bias|scale)$", "", tensor.name) for tensor in file.tensors}
        others = {one for one in bare if one.rsplit(".")[-1] in HALVES.get(architecture, ())}
        assert bare - others <= places, bare - places
    parameters = sum(p.numel() for p in model.state_dict().values())
    # the divisors of frequencies are no parameters
    unused = UNWRITTEN.get(name, 0)
    stored = sum(tensor.n_elements for tensor in file.tensors if tensor.name != "rope_freqs.weight")
    assert stored == parameters - unused
    read = read_gguf(tmp_path / "model.gguf", torch.float32).model
    assert plain(read.spec.replace(name="")).num_layers == model.spec.num_layers
    expected = outputs(model, TOKENS)
    # factors are in the matrices of Falcon-H1, the norms of dots 3 and the queries of Kimi K3, and the rows of Hy4's
    # are in another order
    exact = name not in ("falcon_h1", "hy_v4 halves", "kimi_k3", "dots3_note_text")
    assert torch.equal(outputs(read, TOKENS), expected) or not exact
    assert torch.allclose(outputs(read, TOKENS), expected, atol=1e-5)
    assert not torch.allclose(outputs(read, TOKENS.flip(1)), expected)  # the control


def tensor(file: Any, name: str) -> np.ndarray:
    return next(np.asarray(one.data) for one in file.tensors if one.name == name)


def test_what_is_stored_otherwise(tmp_path: Path) -> None:
    model, file = written("nemotron", SPECS["nemotron"], tmp_path / "nemotron")
    assert (tensor(file, "output_norm.weight") == model.get_parameter("final_norm.weight").detach().numpy() + 1).all()
    model, file = written("mamba2", SPECS["mamba2"], tmp_path / "mamba2")
    rates = -model.get_parameter("blocks.0.mixer.A_log").detach().exp()
    assert np.allclose(tensor(file, "blk.0.ssm_a"), rates[:, None])
    assert tensor(file, "blk.0.ssm_norm.weight").shape == (2, 32)
    model, file = written("qwen3_next", SPECS["qwen3_next"], tmp_path / "qwen3_next")
    parts = [model.get_parameter(f"blocks.3.mixer.{name}.weight").detach().view(4, 8, 32) for name in ("q", "gate")]
    assert (tensor(file, "blk.3.attn_q.weight") == torch.cat(parts, 1).flatten(0, 1).numpy()).all()
    model, file = written("qwen3_5_text", SPECS["qwen3_5_text"], tmp_path / "qwen3_5")
    # of two key heads with two value heads each: 0, 2, 1, 3
    values = model.get_parameter("blocks.0.mixer.gate.weight").detach().view(4, 8, 32)[[0, 2, 1, 3]]
    assert (tensor(file, "blk.0.attn_gate.weight") == values.flatten(0, 1).numpy()).all()


def test_kimi_k3_has_queries_over_depth_as_its_converter_joins_them(tmp_path: Path) -> None:
    model, file = written("kimi_k3", SPECS["kimi_k3"], tmp_path / "k3")
    depth = model.get_submodule("blocks.2.mixer_residual.attend")
    expected = (depth.query[0] * depth.norm_weight).detach().numpy()
    assert (tensor(file, "blk.2.attn_res_score.weight") == expected).all()
    assert not tensor(file, "blk.0.attn_res_score.weight").any()  # which llama.cpp reads and does not use
    rates = -model.get_parameter("blocks.0.mixer.A_log").detach().exp()
    assert np.allclose(tensor(file, "blk.0.ssm_a"), rates)
    # Kimi's own classes have 1e-6 in the norms of latents; a model of the class of Kimi Linear is written as Kimi K3
    tiny = preset("kimi-k3-tiny")
    target = gguf_of("kimi_linear", tiny)
    assert target.architecture == "kimi-k3" and keys_of(target, tiny)[RMS] == tiny.final_norm.eps
    assert tiny.layers[-1].mixer.norm.eps != tiny.final_norm.eps
    with pytest.raises(CheckpointError, match=r"mixer.norm.eps: llama.cpp does not support 0.001 in kimi-linear"):
        keys_of(GGUF["kimi_linear"], assign(SPECS["kimi_linear"], ["layers[1].mixer.norm.eps=0.001"]))


def copied(file: Any, architecture: str, path: Path, changed: dict[str, Any]) -> None:
    """Write a file again with other values of keys, or without those that are None."""
    writer = gguf.GGUFWriter(path, architecture)
    keys = {key: field.contents() for key, field in file.fields.items() if "." in key and key.split(".")[0] != "GGUF"}
    for key, value in (keys | changed).items():
        if isinstance(value, list):
            kinds = file.fields[key].types if key in file.fields else [None, None]
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=kinds[-1])
        elif value is not None and not key.startswith("general.architecture"):
            usual = gguf.GGUFValueType.UINT32 if isinstance(value, int) else gguf.GGUFValueType.FLOAT32
            kind = usual if key in changed else file.fields[key].types[0]
            writer.add_key_value(key, value, kind)
    for one in file.tensors:
        writer.add_tensor(one.name, np.asarray(one.data), raw_dtype=one.tensor_type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


@torch.no_grad()
def test_parameters_that_are_keys(tmp_path: Path) -> None:
    """Numbers of xIELU in a file of bfloat16, and in files with one for all layers, or too few."""
    model = randomize(build(SPECS["apertus"])).to(torch.bfloat16).eval()
    write_gguf(model, family_of("apertus"), None, tmp_path / "model.gguf")
    file = gguf.GGUFReader(tmp_path / "model.gguf")
    numbers = {name: file.fields[f"xielu.{name}"].contents() for name in ("alpha_p", "alpha_n", "beta", "eps")}
    state = model.state_dict()
    for name, values in numbers.items():
        assert values == [float(state[f"blocks.{layer}.feedforward.activation.{name}"]) for layer in range(2)]
    read = read_gguf(tmp_path / "model.gguf").model.state_dict()
    assert {tensor.dtype for tensor in read.values()} == {torch.bfloat16}
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.items())
    for label, value in {"one": 0.25, "short": [0.25]}.items():
        copied(file, "apertus", tmp_path / label, {"xielu.beta": value})
    betas = [f"blocks.{layer}.feedforward.activation.beta" for layer in range(2)]
    one_for_all = read_gguf(tmp_path / "one").model.state_dict()
    assert [float(one_for_all[name]) for name in betas] == [0.25, 0.25]
    with pytest.raises(CheckpointError, match=r"xielu.beta: \[0.25\] does not have a number for each of 2 layers"):
        read_gguf(tmp_path / "short")


@pytest.mark.parametrize("name", ["plamo3", "gpt_oss"])
def test_bases_of_rotations_in_windows(name: str, tmp_path: Path) -> None:
    """A file without the key: PLaMo 3's windows have 10,000 in llama.cpp, gpt-oss's the base of the other layers."""
    model, file = written(name, SPECS[name], tmp_path / "model.gguf")
    architecture = gguf_of(name, model.spec).architecture
    copied(file, architecture, tmp_path / "without.gguf", {f"{architecture}.rope.freq_base_swa": None})
    read = read_gguf(tmp_path / "without.gguf").model.spec
    assert isinstance(read, spec.Decoder)
    mixers: list[Any] = [block.mixer for block in read.layers]
    bases = {mixer.pattern.kind: mixer.position.theta for mixer in mixers}
    assert bases["window"] == (10_000.0 if name == "plamo3" else bases["full"]) and bases["full"] != 10_000.0


EDITS: dict[str, tuple[str, list[str], str]] = {
    "an activation": ("olmo2", ["layers[*].feedforward.activation=gelu"], "layers[0].feedforward.activation"),
    "a scale": ("starcoder2", ["layers[*].mixer.scale=0.5"], "layers[*].mixer.scale"),
    "a wiring": ("exaone", ["layers[*].wiring.kind=post_norm"], "layers[*].wiring.kind"),
    "pairs": ("cohere", ["layers[*].mixer.position.interleaved=false"], "layers[*].mixer.position.interleaved"),
    "layers that rotate": ("smollm3", ["layers[1].mixer.position={kind: none}"], "layers[1].mixer.position.kind"),
    "a tied head": ("olmo2", ["head.tied=true"], "head.tied: llama.cpp does not support a tied head"),
    "an untied head": ("cohere", ["head.tied=false"], "head.tied: llama.cpp does not support an untied head"),
    "windows": ("exaone", ["layers[0].mixer.pattern={kind: window, size: 4}"], "layers[0].mixer.pattern"),
    "weights": ("olmoe", ["layers[*].feedforward.router.renormalize=true"], "layers[*].feedforward.router"),
    "a late dense layer": (
        "mellum", ["layers[1].feedforward={kind: gated, d_ff: 48, activation: silu}"],
        "layers[*].feedforward: llama.cpp does not support experts in these layers only",
    ),
    "two kinds of layers without mixers": (
        "nemotron_h_moe", ["layers[3].feedforward={kind: mlp, d_ff: 48, activation: relu2}"],
        "layers[*].feedforward: llama.cpp does not support experts in some layers and none in others",
    ),
    "narrow heads": ("rwkv7", ["layers[*].mixer.num_heads=4"], "layers[*].mixer.num_heads: llama.cpp does not support"),
    "a first layer without attention": (
        "nemotron-nas", ["layers[0].mixer={kind: none}"], "layers[0].mixer: llama.cpp does not support a first layer",
    ),
    "experts of another width": (
        "nomic_bert_moe", ["layers[1].feedforward.expert.d_ff=40"], "layers[*].feedforward.d_ff: llama.cpp does not",
    ),
    "an unbounded decay": ("bailing_hybrid", ["layers[0].mixer.decay_bound=null"], "layers[*].mixer.decay_bound"),
    "three streams": ("glm5_next_text", ["residual.num_streams=3"], "residual.num_streams: llama.cpp does not"),
    "no index": ("glm5_next_text", ["layers[1].mixer.index=null"], "layers[*].mixer.index: llama.cpp does not"),
    "no depth": ("kimi_k3", ["residual={kind: sum}"], "residual: only kind depth_attention"),
    "narrow rows": ("qwen4_exp_text memory", ["layers[0].feedforward.row_width=4"], "layers[*].feedforward.row_width"),
    "a memory before attention": (
        "qwen4_exp_text memory", ["layers[1].mixer={kind: none}"], "layers[*].feedforward: llama.cpp does not",
    ),
    "three layers": ("hrm_text", ["layers[11].weights_of=null"], "layers[*].weights_of: llama.cpp does not support"),
    "another sum": ("hrm_text", ["layers[6].adds_input_of=0"], "layers[6].adds_input_of: llama.cpp does not support 0"),
    "no windows": (
        "dots3_note_text", ["layers[1:3].mixer.pattern=full"], "layers[*].mixer.pattern: llama.cpp does not support",
    ),
    "queries of two widths": (
        "dots3_note_text", ["layers[1].mixer.query.rank=7"], "layers[1].mixer.query.rank: llama.cpp does not support 7",
    ),
    "wide heads": ("olmo2", ["layers[*].mixer.head_dim=16"], "layers[*].mixer.head_dim: llama.cpp does not support"),
    "half a head": ("exaone", ["layers[*].mixer.position.dim=4"], "layers[*].mixer.position.dim: llama.cpp does not"),
    "divisors": (
        "PanguEmbedded",
        ["layers[*].mixer.position.scaling={kind: llama3, factor: 4, low_frequency_factor: 1, high_frequency_factor: 4,"
         " original_context_length: 64}"],
        "layers[*].mixer.position.scaling.kind: llama.cpp does not support 'llama3' in pangu",
    ),
    "unequal heads": ("arcee", ["layers[0].mixer.num_kv_heads=1"], "layers[*].mixer.num_heads: llama.cpp does not"),
    "unequal networks": ("arcee", ["layers[0].feedforward.d_ff=64"], "layers[*].feedforward.d_ff: llama.cpp does not"),
    "a dense network of another width": (
        "jamba", ["layers[0].feedforward.d_ff=64"], "layers[*].feedforward.d_ff: llama.cpp does not support",
    ),
    "unequal experts": (
        "step3p5", ["layers[-1].feedforward.num_experts=6"], "layers[*].feedforward.num_experts: llama.cpp does not",
    ),
    "another base in windows": (
        "mellum", ["layers[0].mixer.position.theta=50"], "layers[1].mixer.position.theta: llama.cpp does not support",
    ),
    "scaled rotations in windows": (
        "olmo3", ["layers[0].mixer.position.scaling={kind: linear, factor: 4}"],
        "layers[0].mixer.position.scaling.kind: llama.cpp does not support",
    ),
    "biases that are not added": (
        "mimo_v2_flash", ["layers[*].mixer.bias.q=true"], "layers[*].mixer.bias: llama.cpp does not support",
    ),
    "slopes": ("jais", ["layers[*].mixer.position.scale=0.5"], "layers[*].mixer.position.scale"),
    "another mixer": (
        "lfm2", ["layers[1].mixer={kind: mamba}"], "layers[1].mixer: only kind",
    ),
    "no network": ("olmo", ["layers[1].feedforward={kind: none}"], "layers[1].feedforward: llama.cpp does not"),
    "no mixer": ("olmo", ["layers[1].mixer={kind: none}"], "layers[1].mixer: llama.cpp does not support a layer"),
    "a network beside Mamba": (
        "mamba2", ["layers[1].feedforward={kind: gated, d_ff: 48, activation: silu}"],
        "layers[1].feedforward: llama.cpp does not support a feed-forward part",
    ),
    "attention beside Mamba": (
        "mamba2", ["layers[1].mixer={kind: attention, num_heads: 4}"], "layers[1].mixer: llama.cpp does not",
    ),
    "a mixer and a network": (
        "nemotron_h", ["layers[0].feedforward={kind: mlp, d_ff: 48, activation: relu2}"],
        "layers[0].feedforward: llama.cpp does not support a feed-forward part",
    ),
    "mixers of one kind": (
        "granitemoehybrid", ["layers[*].mixer={kind: attention, num_heads: 4}"], "layers[*].mixer: llama.cpp does not",
    ),
    "Mamba without norms": ("jamba", ["layers[0].mixer={kind: mamba}"], "layers[0].mixer.norm: llama.cpp does not"),
    "another mixer beside windows": ("phi3", ["layers[1].mixer={kind: mamba}"], "layers[1].mixer: only kind"),
}  # fmt: skip


def test_what_llama_cpp_does_not_compute_is_refused(tmp_path: Path) -> None:
    for label, (name, edits, said) in EDITS.items():
        with case(label):
            model = build(assign(SPECS[name], edits))
            with pytest.raises(CheckpointError) as caught:
                write_gguf(model, family_of(name), None, tmp_path / "out.gguf")
            assert str(caught.value).startswith(said), caught.value
            assert not list(tmp_path.iterdir())


def test_a_model_of_no_family_is_written_as_what_computes_it() -> None:
    """A specification that no published format expresses, by the first architecture that computes it."""
    assert gguf_family(SPECS["arcee"]).name == "arcee"
    assert gguf_family(SPECS["nemotron_h_moe"]).name == "nemotron_h_moe"
    for edit in ("layers[*].wiring.kind=post_norm", "layers[1].mixer={kind: mamba}"):
        with pytest.raises(CheckpointError, match="no family can express it"):
            gguf_family(assign(SPECS["arcee"], [edit]))


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    _, file = written("cohere2", SPECS["cohere2"], tmp_path / "model.gguf")
    key = "cohere2.attention.sliding_window_pattern"
    copied(file, "cohere2", tmp_path / "changed.gguf", {key: [True]})
    with pytest.raises(CheckpointError, match=r"sliding_window_pattern: \[True\] lacks layers; fix the file"):
        read_gguf(tmp_path / "changed.gguf")


def test_hashes_of_no_seed_are_refused(tmp_path: Path) -> None:
    _, file = written("qwen4_exp_text", SPECS["qwen4_exp_text memory"], tmp_path / "model.gguf")
    for key, value, said in (
        ("layer_multipliers", [3, 5, 7], "do not come from a seed of transformers"),
        ("head_vocab_sizes", [41, 43, 47, 61], "do not fit 184 rows"),
        ("head_offsets", [0, 41, 84, 132], "are not where tables of the next primes begin"),
        ("layers", [1], "is not a single layer with a delta network"),
    ):
        with case(key):
            copied(file, "qwen4exp", tmp_path / "changed.gguf", {f"qwen4exp.ple.{key}": value})
            with pytest.raises(CheckpointError, match=rf"ple.{key}: .* {said}"):
                read_gguf(tmp_path / "changed.gguf")


def test_a_first_state_other_than_zero_is_refused(tmp_path: Path) -> None:
    written("hrm_text", SPECS["hrm_text"], tmp_path / "model.gguf")
    file = gguf.GGUFReader(tmp_path / "model.gguf", "r+")
    tensor(file, "hrm.z_l_init")[3] = 1e-3
    with pytest.raises(CheckpointError, match=r"hrm\.z_l_init: is not a vector of zeros"):
        read_gguf(tmp_path / "model.gguf")


@torch.no_grad()
def test_keys_that_old_files_lack(tmp_path: Path) -> None:
    """llama.cpp's values of these keys, such as the constant factors of the first MiniCPM and Grok."""
    lacking: dict[str, dict[str, float]] = {
        "minicpm": {"embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 1.4 / 2**0.5},
        "grok": {"embedding_scale": 6144**0.5, "logit_scale": 3**-0.5},
        "gemma4_text": {"rope.freq_base": 10_000.0},
        "muse_glimmer_text": {"final_logit_softcapping": 30.0},
    }
    for name, values in lacking.items():
        _, file = written(name, SPECS[name], tmp_path / name)
        for key, value in values.items():
            with case(key):
                path = f"{gguf_of(name, SPECS[name]).architecture}.{key}"
                for kind, changed in (("without", None), ("with", value), ("other", 3 * value)):
                    copied(file, path.split(".")[0], tmp_path / kind, {path: changed})
                models = (read_gguf(tmp_path / kind).model for kind in ("without", "with", "other"))
                without, same, other = (outputs(model, TOKENS) for model in models)
                assert distance(without, same) < 1e-5 < 1e-4 < distance(other, same)
    _, file = written("glm_moe_dsa", SPECS["glm_moe_dsa"], tmp_path / "glm")
    copied(file, "glm-dsa", tmp_path / "without", {"glm-dsa.expert_gating_func": None})
    assert read_gguf(tmp_path / "without").model.spec == read_gguf(tmp_path / "glm").model.spec
    _, file = written("exaone4", SPECS["exaone4"], tmp_path / "exaone4")
    copied(file, "exaone4", tmp_path / "without", {"exaone4.attention.sliding_window": None})
    layers: Any = read_gguf(tmp_path / "without").model.spec.layers
    assert layers[0].mixer.pattern == spec.Window(size=4096) and layers[3].mixer.pattern == spec.Full()


def test_divisors_of_scaled_frequencies_are_refused(tmp_path: Path) -> None:
    scaling = (
        "{kind: llama3, factor: 4, low_frequency_factor: 1, high_frequency_factor: 4, original_context_length: 64}"
    )
    model = assign(SPECS["arcee"], [f"layers[*].mixer.position.scaling={scaling}"])
    _, file = written("arcee", model, tmp_path / "model.gguf")
    assert read_gguf(tmp_path / "model.gguf").model.spec.layers == model.layers  # type: ignore[union-attr]
    copied(file, "arcee", tmp_path / "both.gguf", {"arcee.rope.scaling.factor": 4.0})
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight: divides frequencies that llama\.cpp scales"):
        read_gguf(tmp_path / "both.gguf")


def test_keys_without_which_llama_cpp_computes_something_else(tmp_path: Path) -> None:
    changed: dict[str, tuple[Any, dict[str, Any], str]] = {
        "mpt": (preset("mpt-tiny"), {"attention.max_alibi_bias": None}, "attention.max_alibi_bias: is 0 or missing"),
        "granite": (SPECS["granite"], {"logit_scale": 0.0}, "logit_scale: 0.0 is not positive"),
        "kimi_k3": (SPECS["kimi_k3"], {"kda.gate_lower_bound": 0.0}, "kda.gate_lower_bound: 0.0 is not negative"),
        "gemma4_text": (
            SPECS["gemma4_text"], {"attention.shared_kv_layers": 9}, "attention.shared_kv_layers: leaves no layer",
        ),
        "hy_v4": (SPECS["hy_v4"], {"attention.indexer.types": True}, "attention.indexer.types: 1 is not a list"),
    }  # fmt: skip
    for name, (model, keys, said) in changed.items():
        with case(name):
            _, file = written(name, model, tmp_path / name)
            architecture = gguf_of(name, model).architecture
            values = {f"{architecture}.{key}": value for key, value in keys.items()}
            copied(file, architecture, tmp_path / "changed.gguf", values)
            with pytest.raises(CheckpointError, match=said):
                read_gguf(tmp_path / "changed.gguf")


def test_a_switch_of_rotations_is_read(tmp_path: Path) -> None:
    model, file = written("granite", SPECS["granite"], tmp_path / "model.gguf")
    assert file.get_field("granite.rope.scaling.finetuned").contents() is True
    still = assign(model.spec, ["layers[*].mixer.position={kind: none}"])
    written("granite", still, tmp_path / "still.gguf")
    assert read_gguf(tmp_path / "still.gguf").model.spec.layers[0].mixer.position.is_absent


def test_rows_of_llama_cpp_are_known() -> None:
    assert len({target.architecture for target in GGUF.values()}) >= 62
