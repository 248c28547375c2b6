"""GGUF files: the keys and tensors that llama.cpp asks for, in its order; what it does not compute is refused."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf import file as ours
from archetype.convert.gguf.architectures import GGUF
from archetype.convert.gguf.graphs import ROWS
from archetype.convert.gguf.quantize import BLOCKS, quantize
from archetype.convert.gguf.rope import frequency_factors
from archetype.convert.gguf.tensors import Stored
from archetype.convert.gguf.types import FILE_TYPES
from archetype.errors import ArchetypeError, CheckpointError
from archetype.families.gemma import gemma
from archetype.families.gemma2 import gemma2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.io.weight_files import SINGLE
from archetype.models.build import Model, build
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from tests.helpers.weights import randomize
from tests.unit.conftest import COMMON, GROUPED

# most of `ROWS` have their own tests (test_gguf_graphs.py)
APART = ROWS.keys() - {"deepseek_v2", "mamba"} | {
    "roberta", "xlm-roberta", "camembert", "data2vec-text", "t5encoder"
}  # fmt: skip
NAMES = [name for name in GGUF if name not in ("gemma2", "gemma3_text", "mpt", "bert", *APART)]


def written(
    model: Model, folder: Path, tokenizer: Tokenizer | None = None, family: str | None = None, **options: Any
) -> Any:
    """The file as the library reads it."""
    export(LanguageModel(model.spec, model, tokenizer), folder, family, format="gguf", **options)
    return gguf.GGUFReader(folder / ours.FILE)


def value(file: Any, key: str) -> Any:
    return file.get_field(key).contents()


def arrays(file: Any) -> dict[str, np.ndarray]:
    return {tensor.name: np.asarray(tensor.data) for tensor in file.tensors}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_there_once(models: dict[str, Model], tmp_path: Path, name: str) -> None:
    file = written(models[name], tmp_path / "out")
    assert sum(array.size for array in arrays(file).values()) == sum(p.numel() for p in models[name].parameters())
    architecture = GGUF[name].architecture
    assert value(file, "general.architecture") == architecture
    assert value(file, f"{architecture}.block_count") == 2
    assert value(file, f"{architecture}.embedding_length") == 8
    assert value(file, f"{architecture}.vocab_size") == 13
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], 2)
    places = {name for _, name in known.mapping.values()}
    assert {name.rsplit(".", 1)[0] if name.endswith(("weight", "bias")) else name for name in arrays(file)} <= places


def test_queries_and_keys_are_in_the_order_of_pairs(models: dict[str, Model], tmp_path: Path) -> None:
    arrays_by_name = arrays(written(models["llama"], tmp_path / "out"))
    for name, heads in (("q", 4), ("k", 2)):
        weight = models["llama"].get_parameter(f"blocks.1.mixer.{name}.weight").detach().numpy()
        dim = weight.shape[0] // heads
        order = [h * dim + half * dim // 2 + pair for h in range(heads) for pair in range(dim // 2) for half in (0, 1)]
        assert (arrays_by_name[f"blk.1.attn_{name}.weight"] == weight[order]).all()
    weight = models["qwen2"].get_parameter("blocks.1.mixer.q.weight").detach().numpy()
    assert (arrays(written(models["qwen2"], tmp_path / "other"))["blk.1.attn_q.weight"] == weight).all()


def test_what_is_stored_otherwise(models: dict[str, Model], tmp_path: Path) -> None:
    arrays_by_name = arrays(written(models["gemma"], tmp_path / "gemma"))
    norm = models["gemma"].get_parameter("final_norm.weight").detach().numpy()
    assert (arrays_by_name["output_norm.weight"] == norm + 1).all()
    arrays_by_name = arrays(written(models["mamba"], tmp_path / "mamba"))
    assert np.allclose(
        arrays_by_name["blk.0.ssm_a"], -np.exp(models["mamba"].get_parameter("blocks.0.mixer.A_log").detach().numpy())
    )
    assert arrays_by_name["blk.0.ssm_conv1d.weight"].shape == (16, 4)
    arrays_by_name = arrays(written(models["bloom"], tmp_path / "bloom"))
    parts = [models["bloom"].get_parameter(f"blocks.0.mixer.{name}.weight").detach() for name in "qkv"]
    assert (arrays_by_name["blk.0.attn_qkv.weight"] == torch.cat(parts).numpy()).all()
    arrays_by_name = arrays(written(models["mixtral"], tmp_path / "mixtral"))
    assert arrays_by_name["blk.1.ffn_down_exps.weight"].shape == (3, 8, 12)


def test_gemma2_with_the_scale_that_llama_cpp_has(tmp_path: Path) -> None:
    model = randomize(build(gemma2(**GROUPED, head_dim=6, query_width=6, window=4)))
    file = written(model, tmp_path / "out")
    assert value(file, "gemma2.attention.sliding_window") == 4
    assert value(file, "gemma2.attn_logit_softcapping") == 50.0
    assert "blk.1.post_ffw_norm.weight" in arrays(file)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matrices_keep_their_type_and_vectors_are_exact(tmp_path: Path, dtype: torch.dtype) -> None:
    model = randomize(build(llama(**GROUPED))).to(dtype)
    file = written(model, tmp_path / "out")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
    assert kinds["blk.0.attn_v.weight"] == {torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    assert kinds["output_norm.weight"] == "F32"
    matrix = next(tensor for tensor in file.tensors if tensor.name == "blk.0.attn_v.weight")
    weight = model.get_parameter("blocks.0.mixer.v.weight").detach()
    assert bytes(matrix.data.tobytes()) == weight.view(torch.uint8).numpy().tobytes()


def test_blocks_are_those_of_the_library() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3, 70, 64, generator=generator)
    integers = torch.randint(-9, 10, (40, 32), generator=generator).float()  # equal magnitudes, and halves
    integers[3] = 0.0
    for numbers in (normal, integers, 1e-3 * normal, normal.exp(), -normal[0].bfloat16().float()):
        for type in BLOCKS:
            kind = gguf.GGMLQuantizationType[type.upper()]
            blocks = quantize(numbers, type).numpy()
            assert np.array_equal(blocks, gguf.quants.quantize(numbers.numpy(), kind)), type
            worst = np.abs(gguf.quants.dequantize(blocks, kind) - numbers.numpy()).max()
            steps = {"q8_0": 127, "q5_1": 15, "q5_0": 16, "q4_0": 8}[type]
            assert worst <= 1.01 * numbers.abs().max() / steps, type  # at the far end few bits miss a whole step


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
def test_matrices_are_quantized_as_far_as_rows_are_whole_blocks(
    tmp_path: Path, type: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = randomize(build(llama(num_layers=1, d_model=64, num_heads=2, d_ff=48, vocab_size=13)))
    caplog.set_level("INFO", logger="archetype")
    file, exact = written(model, tmp_path / "out", type=type), arrays(written(model, tmp_path / "exact"))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
    assert {name for name, kind in kinds.items() if kind == "F32"} == {name for name in exact if "norm" in name}
    assert [name for name, kind in kinds.items() if kind == "F16"] == ["blk.0.ffn_down.weight"]
    assert "blk.0.ffn_down.weight: rows of 48 weights are not a multiple of 32: stored as f16" in caplog.text
    assert [kinds[name] for name in ("token_embd.weight", "output.weight", "blk.0.attn_q.weight")] == 3 * [type.upper()]
    for tensor in file.tensors:
        assert np.array_equal(tensor.data, gguf.quants.quantize(exact[tensor.name], tensor.tensor_type)), tensor.name
        assert tensor.shape.tolist()[::-1] == list(exact[tensor.name].shape)
    assert gguf.LlamaFileType(value(file, "general.file_type")).name == f"MOSTLY_{type.upper()}"
    assert value(file, "general.quantization_version") == gguf.GGML_QUANT_VERSION


def test_the_type_of_the_file_may_be_another_than_the_models(tmp_path: Path) -> None:
    model = randomize(build(llama(**GROUPED))).to(torch.bfloat16)
    for type, name in (("f32", "F32"), ("f16", "F16"), ("bf16", "BF16")):
        file = written(model, tmp_path / type, type=type)
        matrix = next(tensor for tensor in file.tensors if tensor.name == "blk.0.attn_v.weight")
        assert matrix.tensor_type.name == name
        ours_in_it = model.get_parameter("blocks.0.mixer.v.weight").detach().float().numpy()
        assert np.array_equal(gguf.quants.dequantize(matrix.data, matrix.tensor_type), ours_in_it)
    for options, message in (
        (
            {"format": "gguf", "type": "q5_1"},
            f"--type: unknown type 'q5_1'; use one of {', '.join(FILE_TYPES)}",
        ),
        ({"type": "q8_0"}, "--type: applies to GGUF files only; add --format gguf, or use --dtype"),
        ({"format": "pt"}, "format: 'pt' is not a format; use one of hf, gguf, archetype-hf, torch-export, onnx"),
    ):
        with pytest.raises(CheckpointError) as caught:
            export(LanguageModel(model.spec, model), tmp_path / "refused", **options)  # type: ignore[arg-type]
        assert str(caught.value) == message


def test_a_window_shortens_the_context(models: dict[str, Model], tmp_path: Path) -> None:
    assert value(written(models["mistral"], tmp_path / "out"), "llama.context_length") == 4


def test_llama3_frequencies_are_factors(tmp_path: Path) -> None:
    scaling = spec.Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=8192
    )
    model_spec = llama(num_layers=1, d_model=64, num_heads=1, d_ff=8, position=spec.Rotary(theta=5e5, scaling=scaling))
    factors = frequency_factors(model_spec)
    assert factors is not None and len(factors) == 32
    from archetype.parts.position.module import rotary_frequencies

    plain, _ = rotary_frequencies(spec.Rotary(theta=5e5), 64, torch.tensor([1]))
    scaled, _ = rotary_frequencies(spec.Rotary(theta=5e5, scaling=scaling), 64, torch.tensor([1]))
    assert torch.allclose(plain / torch.tensor(factors), scaled)
    file = written(randomize(build(model_spec)), tmp_path / "out")
    assert arrays(file)["rope_freqs.weight"].tolist() == pytest.approx(factors)


REFUSED: dict[str, tuple[spec.Decoder, str, str]] = {
    "another activation": (llama(**GROUPED, activation="relu"), "llama", "layers[0].feedforward.activation: llama.cpp"),
    "another ramp": (
        llama(**GROUPED, position=spec.Rotary(
            scaling=spec.YarnScaling(factor=2.0, original_context_length=16, beta_fast=24.0)
        )),
        "llama", "layers[0].mixer.position.scaling: llama.cpp does not support yarn scaling",
    ),
    "long rope": (
        llama(**GROUPED, position=spec.Rotary(
            scaling=spec.LongRopeScaling(
                short_factors=(1.0, 1.0), long_factors=(2.0, 2.0), original_context_length=16
            )
        )),
        "llama", "layers[0].mixer.position.scaling: llama.cpp does not support longrope scaling",
    ),
    "dynamic scaling": (
        llama(**GROUPED, position=spec.Rotary(scaling=spec.DynamicScaling(factor=2.0, original_context_length=16))),
        "llama", "layers[0].mixer.position.scaling: llama.cpp does not support dynamic scaling",
    ),
    "no caps": (gemma2(**GROUPED, head_dim=6, query_width=6, attention_softcap=None), "gemma2",
                "layers[*].mixer.softcap: llama.cpp does not support gemma2 without soft caps"),
    "another scale": (gemma2(**GROUPED, head_dim=6, query_width=5), "gemma2", "layers[*].mixer.scale: llama.cpp"),
    "its own head": (gemma2(**GROUPED, head_dim=6, query_width=6, tied=False), "gemma2", "head.tied: llama.cpp"),
    "a bias": (gemma(**GROUPED, head_dim=6, attention_bias=True), "gemma", "layers[*].mixer.bias: llama.cpp"),
    "another expansion": (mamba(**COMMON, expand=3), "mamba", "layers[0].mixer.expand: llama.cpp"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_does_not_compute_is_refused(tmp_path: Path, case: str) -> None:
    model_spec, family, said = REFUSED[case]
    with pytest.raises(CheckpointError) as caught:
        written(build(model_spec), tmp_path / "out", family=family)
    assert str(caught.value).startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_family_that_llama_cpp_does_not_know_is_refused(models: dict[str, Model], tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="--format: gguf does not support vit; use --format hf; gguf supports llama, mistral"
    ):
        written(models["vit"], tmp_path / "out")


def test_bytes_are_a_vocabulary(tmp_path: Path) -> None:
    model = build(llama(**(GROUPED | {"vocab_size": 260})))
    file = written(model, tmp_path / "out", train_tokenizer("bytes", "", None))
    tokens = value(file, "tokenizer.ggml.tokens")
    assert len(tokens) == 260
    assert (tokens[65], tokens[32], tokens[0], tokens[259]) == ("A", "Ġ", "Ā", "[PAD259]")
    assert value(file, "tokenizer.ggml.model") == "gpt2"


def test_byte_level_bpe_is_a_vocabulary(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("byte_bpe", "hello hello world " * 9, 280)
    model = build(llama(**(GROUPED | {"vocab_size": 300})))
    file = written(model, tmp_path / "out", tokenizer)
    tokens, types = value(file, "tokenizer.ggml.tokens"), value(file, "tokenizer.ggml.token_type")
    assert len(tokens) == len(types) == 300
    for id in tokenizer.encode("hello world"):
        assert tokens[id].replace("Ġ", "▁") == tokenizer.token(id)
    assert {types[id] for id in tokenizer.special_tokens.values()} == {3}
    assert value(file, "tokenizer.ggml.pre") == "gpt-2"
    assert value(file, "tokenizer.ggml.eos_token_id") == tokenizer.eos[0]


def test_a_chat_template_goes_along(tmp_path: Path) -> None:
    source = "{{ bos_token }}{% for message in messages %}«{{ message.content }}»\n{% endfor %}"
    model = build(llama(**GROUPED))
    export(LanguageModel(model.spec, model, template=ChatTemplate(source, {})), tmp_path / "out", format="gguf")
    assert value(gguf.GGUFReader(tmp_path / "out" / ours.FILE), "tokenizer.chat_template") == source
    assert written(model, tmp_path / "other").get_field("tokenizer.chat_template") is None


def test_a_tokenizer_without_a_form_there_is_refused(tmp_path: Path) -> None:
    model = build(llama(**GROUPED))
    with pytest.raises(ArchetypeError, match="tokenizer: GGUF does not support a tokenizer of kind characters"):
        written(model, tmp_path / "out", train_tokenizer("characters", "hello", None))
    assert not list(tmp_path.iterdir())


def test_what_does_not_read_back_is_not_called_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def worn(writer: Any, library: Any, name: str, stored: Stored) -> None:
        put(writer, library, name, stored._replace(data=-stored.data))

    put = ours._put_tensor
    monkeypatch.setattr(ours, "_put_tensor", worn)
    with pytest.raises(CheckpointError, match="reads back differently than it was written"):
        written(build(llama(**GROUPED)), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_the_other_format_stays_what_it_is(models: dict[str, Model], tmp_path: Path) -> None:
    export(LanguageModel(models["llama"].spec, models["llama"]), tmp_path / "out")
    assert math.prod(load_file(tmp_path / "out" / SINGLE)["lm_head.weight"].shape) == 13 * 8
