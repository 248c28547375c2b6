"""GGUF files read: every architecture that is written, every quantization, and what is not understood."""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import archetype
from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.api.loading import load
from archetype.convert.gguf import file as ours
from archetype.convert.gguf.architectures import GGUF
from archetype.convert.gguf.header import Header, read_header
from archetype.convert.source import open_spec
from archetype.distribution import install_command
from archetype.errors import ArchetypeError, CheckpointError, DataError
from archetype.families.bert import bert
from archetype.families.bloom import bloom
from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.gemma import gemma
from archetype.families.gemma2 import gemma2
from archetype.families.gemma3_text import gemma3_text
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mistral import mistral
from archetype.families.mixtral import mixtral
from archetype.families.mpt import mpt
from archetype.families.qwen2 import qwen2
from archetype.families.qwen3 import qwen3
from archetype.families.qwen3_moe import qwen3_moe
from archetype.families.t5 import t5
from archetype.models.build import Model, build
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.weights import randomize
from tests.unit.convert.test_gguf import APART

COMMON: dict[str, Any] = dict(num_layers=2, d_model=64, vocab_size=300, context_length=64)
GROUPED: dict[str, Any] = COMMON | dict(num_heads=4, num_kv_heads=2, d_ff=96)
LATENT: dict[str, Any] = COMMON | dict(
    num_heads=4, d_ff=96, num_experts=4, experts_per_token=2, expert_d_ff=32, num_shared_experts=2,
    kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24,
)  # fmt: skip
PAIR: dict[str, Any] = COMMON | dict(num_heads=4, head_dim=16, d_ff=96)
BANDS = spec.Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=64)
YARN = spec.YarnScaling(factor=4.0, original_context_length=16, mscale=0.707, mscale_all_dim=0.707)
PLAIN = spec.Rotary(interleaved=True)
MODELS: dict[str, spec.ModelSpec] = {
    "llama": llama(**GROUPED),
    "llama tied, biases, wide heads": llama(
        **GROUPED, tied=True, attention_bias=True, mlp_bias=True, head_dim=32, eps=2e-5
    ),
    "llama bands": llama(**GROUPED, position=spec.Rotary(theta=5e5, scaling=BANDS)),
    "llama linear": llama(**GROUPED, position=spec.Rotary(scaling=spec.LinearScaling(factor=4.0))),
    "mistral": mistral(**GROUPED, window=None),
    "mixtral": mixtral(**GROUPED, num_experts=4),
    "qwen2": qwen2(**GROUPED),
    "qwen3": qwen3(**GROUPED, head_dim=24),
    "qwen3_moe": qwen3_moe(**COMMON, num_heads=4, num_kv_heads=2, head_dim=24, expert_d_ff=32, num_experts=4,
                           experts_per_token=2),
    "gemma": gemma(**GROUPED, head_dim=32),
    "gemma2": gemma2(**GROUPED, head_dim=32, query_width=32, window=8),
    "gemma3_text": gemma3_text(**GROUPED | {"num_layers": 7}, head_dim=32, query_width=32, window=8),
    "gemma3_text scaled": gemma3_text(
        **GROUPED | {"num_layers": 7}, head_dim=32, query_width=32, window=8, softcap=30.0,
        position=spec.Rotary(theta=1e6, scaling=spec.LinearScaling(factor=8.0)),
    ),
    "deepseek_v2": deepseek_v2(**LATENT, q_lora_rank=24, router_scale=2.0, position=PLAIN),
    "llama yarn": llama(
        **GROUPED, position=spec.Rotary(scaling=spec.YarnScaling(factor=4.0, original_context_length=16))
    ),
    "deepseek_v2 yarn": deepseek_v2(**LATENT, position=spec.Rotary(interleaved=True, scaling=YARN)),
    "deepseek_v2 tied": deepseek_v2(**LATENT | {"num_layers": 3}, num_dense_layers=2, tied=True, position=PLAIN),
    "gpt2": gpt2(**COMMON, num_heads=4),
    "bloom": bloom(**COMMON, num_heads=4),
    "mpt": mpt(**COMMON, num_heads=4),
    "mamba": mamba(**COMMON),
    "bert": bert(**COMMON, num_heads=4, head=spec.NoHead(), pooler=True),
    "t5": t5(**PAIR),
    "t5 v1.1": t5(**PAIR, gated=True, tied=False, num_decoder_layers=1, num_buckets=16),
}  # fmt: skip
PREFIXES = ("general.file_type", "general.quantization_version")


def exported(model: Model, folder: Path, family: str | None = None, **options: Any) -> Path:
    export(LanguageModel(model.spec, model), folder, family, format="gguf", **options)
    return folder / ours.FILE


@torch.no_grad()
def answer(model: Any) -> torch.Tensor:
    """Logits, or vectors, of a fixed text."""
    tokens = torch.randint(0, 300, (1, 21), generator=torch.Generator().manual_seed(1))
    further = {"source": tokens.flip(1)} if model.spec.reads_source else {}
    output = model(tokens, **further)
    return output.hidden if output.logits is None else output.logits


def contents(file: Path) -> dict[str, tuple[str, bytes]]:
    """The tensors, by the library's own reader."""
    return {tensor.name: (tensor.tensor_type.name, tensor.data.tobytes()) for tensor in gguf.GGUFReader(file).tensors}


@pytest.mark.parametrize("name", every(3, MODELS))
def test_what_is_written_is_read_to_the_bit(tmp_path: Path, name: str) -> None:
    """Logits, specification, tensors and keys; and the other way: what was read is written the same."""
    family = name.split()[0]
    model = randomize(build(MODELS[name]))
    file = exported(model, tmp_path / "out", family)
    read = load(file)
    assert torch.equal(answer(read.model), answer(model))
    assert read.spec.name == family and open_spec(str(file)) == read.spec
    again = exported(read.model, tmp_path / "again", read.family.name if read.family else None)
    assert contents(again) == contents(file)
    assert dict(read_header(again).metadata) == dict(read_header(file).metadata)


def test_every_architecture_is_tried() -> None:
    assert {name.split()[0] for name in MODELS} == GGUF.keys() - APART


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_types_of_16_bits_stay_what_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    """Norms in float32 among them, which are the model's own; where they are not, all is read in float32."""
    for name in ("llama", "gemma", "mamba"):
        with case(name):
            model = randomize(build(MODELS[name])).to(dtype)
            file = exported(model, tmp_path / name, name)
            state = load(file).model.state_dict()
            for key, tensor in model.state_dict().items():
                assert state[key].dtype == dtype
                # of numbers near 0, several have one exponential
                both = [t.float().exp() if "A_log" in key else t for t in (state[key], tensor)]
                assert torch.equal(*both), key
    model = randomize(build(MODELS["llama"]))
    file = exported(model, tmp_path / "finer", type={torch.float16: "f16", torch.bfloat16: "bf16"}[dtype])
    read = load(file).model
    assert read.dtype == torch.float32
    assert torch.equal(read.get_parameter("final_norm.weight"), model.get_parameter("final_norm.weight"))
    assert load(file, dtype).model.dtype == dtype


def rewritten(
    file: Path, to: Path, types: Mapping[str, Any], change: Callable[[str, Any], Any] = lambda key, value: value
) -> Path:
    """The file with other metadata, and with random blocks of some types for tensors of theirs."""
    header = read_header(file)
    architecture = header.metadata["general.architecture"]
    writer = gguf.GGUFWriter(to, architecture)
    for key, value in header.metadata.items():
        value = change(key, value)
        if value is not None and key != "general.architecture":
            put = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                   list: writer.add_array}  # fmt: skip
            put[type(value)](key, value)
    draw = np.random.default_rng(0)
    for tensor in gguf.GGUFReader(file).tensors:
        kind = types.get(tensor.name)
        if kind is None:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            shape = gguf.quants.quant_shape_to_byte_shape(tensor.shape.tolist()[::-1], kind)
            writer.add_tensor(tensor.name, draw.integers(0, 256, shape, dtype=np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


def blocks_kinds() -> list[Any]:
    kinds = []
    for kind, (_, size) in gguf.GGML_QUANT_SIZES.items():
        try:
            gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        kinds.append(kind)
    return [kind for kind in kinds if kind.name not in ("F32", "F16", "BF16")]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32)


def test_every_quantization_is_the_librarys_to_the_bit(tmp_path: Path) -> None:
    kinds = blocks_kinds()
    assert {"Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ1_S", "IQ4_XS", "TQ2_0", "MXFP4"} <= {
        kind.name for kind in kinds
    }
    model = randomize(build(mixtral(num_layers=1, d_model=256, num_heads=4, num_kv_heads=2, d_ff=256, num_experts=2,
                                    vocab_size=300, context_length=64)))  # fmt: skip
    sound = exported(model, tmp_path / "sound")
    matrices = [name for name, (_, data) in contents(sound).items() if name.endswith(("_exps.weight", "v.weight"))]
    matrices += ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"]
    for kind in kinds:
        with case(kind.name):
            file = rewritten(sound, tmp_path / f"{kind.name}.gguf", dict.fromkeys(matrices, kind))
            read = load(file).model
            assert read.dtype == torch.float32
            with np.errstate(all="ignore"):  # random bits are no numbers here and there
                stored = {
                    tensor.name: torch.tensor(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
                    for tensor in gguf.GGUFReader(file).tensors
                }
            for name, parameter in (
                ("token_embd", "embedding.token"), ("output", "lm_head"), ("blk.0.attn_v", "blocks.0.mixer.v"),
            ):  # fmt: skip
                weight = read.get_parameter(f"{parameter}.weight")
                assert torch.equal(bits(weight), bits(stored[f"{name}.weight"].reshape(weight.shape))), name
            for name in ("gate", "up", "down"):
                weight = read.get_parameter(f"blocks.0.feedforward.experts.{name}")
                assert torch.equal(bits(weight), bits(stored[f"blk.0.ffn_{name}_exps.weight"].reshape(weight.shape)))
            turned = read.get_parameter("blocks.0.mixer.q.weight").view(4, 2, 32, 256).transpose(1, 2).reshape(256, 256)
            assert torch.equal(bits(turned), bits(stored["blk.0.attn_q.weight"].reshape(256, 256)))
            half = load(file, torch.bfloat16).model.get_parameter("lm_head.weight")
            assert torch.equal(
                half.view(torch.int16), read.get_parameter("lm_head.weight").bfloat16().view(torch.int16)
            )


def test_parts_are_read_together(tmp_path: Path) -> None:
    model = randomize(build(MODELS["llama"]))
    file = exported(model, tmp_path / "out")
    header = read_header(file)
    tensors = list(gguf.GGUFReader(file).tensors)
    names = [f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        if number == 0:
            for key, value in header.metadata.items():
                if key != "general.architecture" and not isinstance(value, list):
                    {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", len(tensors))
        for tensor in tensors[number::3]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for name in names:
        assert torch.equal(answer(load(tmp_path / name).model), answer(model))
    (tmp_path / names[1]).rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.gguf: is missing, but the model needs all"):
        load(tmp_path / names[2])
    with pytest.raises(CheckpointError, match=r"elsewhere.gguf: is one of 3 parts, but its name says 1"):
        load(tmp_path / "elsewhere.gguf")


def test_a_run_a_cost_and_the_next_export(tmp_path: Path) -> None:
    model = randomize(build(MODELS["gemma"]))
    file = exported(model, tmp_path / "out")
    load(file, mapped=True).save(tmp_path / "run")
    assert torch.equal(answer(load(tmp_path / "run").model), answer(load(file).model))
    assert archetype.cost_report(str(file)).parameters["total"] == sum(p.numel() for p in model.parameters())
    export(load(file), tmp_path / "hf")
    assert torch.equal(answer(load(tmp_path / "hf").model), answer(load(file).model))


def test_blocks_are_packed_again_without_a_loss(tmp_path: Path) -> None:
    model = randomize(build(llama(**GROUPED | {"d_ff": 128})))
    file = exported(model, tmp_path / "out", type="q8_0")
    read = load(file, weights="int8")
    again = tmp_path / "again"
    export(read, again, format="gguf", type="q8_0")
    assert contents(again / ours.FILE) == contents(file)


def changed(key: str, value: Any) -> Callable[[str, Any], Any]:
    return lambda other, old: value if other == key else old


REFUSED: dict[str, tuple[str, Callable[[str, Any], Any], str]] = {
    "an architecture": ("llama", lambda key, value: value, "general.architecture: 'unheard' is not supported"),
    "a missing key": ("llama", changed("llama.block_count", None), "llama.block_count: is missing"),
    "a value": ("llama", changed("llama.attention.head_count", "x"), "llama.attention.head_count: 'x' is not a num"),
    "other heads": ("llama", changed("llama.attention.value_length", 8), "llama.attention.value_length: 8 is not supp"),
    "a part of heads": ("llama", changed("llama.rope.dimension_count", 8), "llama.rope.dimension_count: 8 is not"),
    "a scaling": ("llama linear", changed("llama.rope.scaling.type", "longrope"), "'longrope' is not supported"),
    "sizes": ("llama", changed("llama.feed_forward_length", 95), "has shape [96, 64] where the model needs [95, 64]"),
    "heads that divide nothing": ("llama", changed("llama.attention.head_count", 3), "heads"),
    "a pooling": ("bert", changed("bert.pooling_type", 2), "bert.pooling_type: 2 is not supported (only mean pooling"),
    "groups": ("deepseek_v2", changed("deepseek2.expert_gating_func", 3), "deepseek2.expert_gating_func: 3 is not"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    which, change, said = REFUSED[name]
    written = exported(build(MODELS[which]), tmp_path / "out", which.split()[0])
    file = rewritten(written, tmp_path / "m.gguf", {}, change)
    if name == "an architecture":
        data = file.read_bytes()
        file.write_bytes(data.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 7) + b"unheard", 1))
    with pytest.raises(ArchetypeError) as caught:
        load(file)
    assert said in str(caught.value) and "\n" not in str(caught.value), caught.value
    assert str(caught.value).startswith(str(file)) or name == "sizes"


def test_keys_that_a_file_of_gemma_2_may_lack_have_the_published_values(tmp_path: Path) -> None:
    written = exported(build(MODELS["gemma2"]), tmp_path / "out", "gemma2")
    lacking = ("gemma2.attention.sliding_window", "gemma2.attn_logit_softcapping", "gemma2.final_logit_softcapping")
    file = rewritten(written, tmp_path / "m.gguf", {}, lambda key, value: None if key in lacking else value)
    read: Any = open_spec(str(file))
    mixer = read.layers[0].mixer
    assert (mixer.pattern.size, mixer.softcap, read.head.softcap) == (4096, 50.0, 30.0)


def test_a_key_and_a_tensor_that_nobody_knows(tmp_path: Path) -> None:
    file = exported(build(MODELS["llama"]), tmp_path / "out")
    data = file.read_bytes()
    assert len(b"llama.context_length") == len(b"llama.another_number")
    (tmp_path / "key.gguf").write_bytes(data.replace(b"general.file_type", b"llama.residuals_x"))
    (tmp_path / "tensor.gguf").write_bytes(data.replace(b"blk.1.attn_v.weight", b"blk.1.attn_w.weight"))
    for name, said in (
        ("key", "llama.residuals_x: is not supported for this family; remove it if it does not change the output"),
        ("tensor", "blk.1.attn_v.weight: this tensor is missing"),
    ):
        with pytest.raises(CheckpointError) as caught:
            load(tmp_path / f"{name}.gguf")
        assert said in str(caught.value)


def test_without_the_library_one_line_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = exported(build(MODELS["gpt2"]), tmp_path / "out")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(DataError) as caught:
        load(file)
    assert str(caught.value) == f"gguf: is not installed; {install_command('gguf')}"


def test_numbers_of_32_bits_are_read_as_they_were_written(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    numbers = [1e-5, 0.1, 1e6, 0.0707, 3.4e38, -1e-40, 0.0, 1 / 3, float("inf")]
    for index, number in enumerate(numbers):
        writer.add_float32(f"n{index}", number)
    writer.add_array("all", [0.5, 0.1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header: Header = read_header(tmp_path / "a.gguf")
    for index, number in enumerate(numbers):
        read = header.metadata[f"n{index}"]
        assert np.float32(read) == np.float32(number)
        assert read == number or number in (1 / 3, -1e-40)
    assert header.metadata["all"] == [0.5, 0.1]


def test_further_tokens_that_no_file_has_are_refused_where_they_are_asked_for(tmp_path: Path) -> None:
    model = randomize(build(llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=13)))
    file = exported(model, tmp_path / "gguf")
    load(file).save(tmp_path / "run")
    for place in (file, tmp_path / "run"):
        with pytest.raises(ArchetypeError, match="further_tokens: the model has no multi-token prediction layers"):
            load(place, further_tokens=True)
