"""Matrices of 8 and 4 bits: small errors, exact products of what is stored, the same bits in every file and machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype import export, load, train
from archetype.api.language_model import LanguageModel
from archetype.errors import ArchetypeError, CheckpointError, SpecError
from archetype.families import preset
from archetype.io.tensors import save
from archetype.models.build import build
from archetype.models.causal import CausalModel
from archetype.models.decoder.module import Decoder
from archetype.native import library as native_library
from archetype.native.kernels import Fused
from archetype.native.library import Library
from archetype.native.rows import quantized_embedding
from archetype.runs.directory import Run, read_run_model
from archetype.spec import assign
from archetype.weights import quantized
from archetype.weights.linear import project
from archetype.weights.lossless import LosslessMatrix
from archetype.weights.packed import PackedMatrix, _warn_of_unpacking, is_packed
from archetype.weights.packing import TYPES, pack_model
from archetype.weights.quantized import QuantizedMatrix, dequantize, quantize, quantize_model
from tests.helpers.cases import case
from tests.helpers.kernels import INSTRUCTIONS, kernels
from tests.helpers.weights import distance, randomize

SHAPES = ((40, 64), (100, 96), (8, 32), (33, 320))


def matrix(rows: int, width: int, bits: int, seed: int = 0) -> tuple[Tensor, QuantizedMatrix]:
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    return weight, QuantizedMatrix(*quantize(weight, bits), rows)


@pytest.fixture(params=INSTRUCTIONS)
def own_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """The kernels for a set of instructions, in place of the machine's own."""
    library = kernels(request.param)
    monkeypatch.setattr(quantized, "library", lambda: library)
    monkeypatch.setattr("archetype.native.kernels.library", lambda: library)
    return library


@pytest.mark.parametrize(("bits", "error"), [(8, 0.006), (4, 0.09)])
def test_numbers_are_near_and_products_are_of_the_stored_numbers(bits: int, error: float, own_kernels: Library) -> None:
    for rows, width in SHAPES:
        weight, stored = matrix(rows, width, bits)
        numbers = stored.unpacked(torch.float32)
        with case(rows, width):
            assert (numbers - weight).norm() < error * weight.norm()
            x, bias = torch.randn(5, 1, width), torch.randn(rows)
            assert distance(project(x, stored, bias), nn.functional.linear(x, numbers, bias)) < 1e-4
            assert torch.equal(project(x, stored)[2:3], project(x[2:3], stored))  # whatever the other rows are
            ids = torch.randint(rows, (3, 2))
            assert torch.equal(stored.embedding(ids), numbers[ids])
            packed = (stored.quants, stored.scales, rows, width, bits, torch.float32)
            natively = quantized_embedding(Fused(own_kernels), ids, *packed)
            assert natively is not None and torch.equal(natively, numbers[ids])


def test_extreme_groups() -> None:
    for bits in (8, 4):
        weight = torch.zeros(4, 64)
        weight[0, 5], weight[1, 40], weight[2] = 1e-9, -6e4, 3.0
        numbers = dequantize(*quantize(weight, bits), bits)
        assert numbers.isfinite().all()
        assert (numbers[[0, 3]] == 0).all() and distance(numbers[1:3], weight[1:3]) < 0.01


@pytest.mark.usefixtures("own_kernels")
def test_the_largest_numbers_have_exact_sums() -> None:
    """All weights and vectors at an end of their range: sums within a group are as large as they become."""
    signs = torch.tensor([1.0, -1.0]).repeat(32)
    for bits, (lowest, largest) in {8: (-128, 127), 4: (-8, 7)}.items():
        for byte, number in ((0, lowest), (255, largest)):
            quants = torch.full((20, 64 * bits // 8), byte, dtype=torch.uint8)
            stored = QuantizedMatrix(quants, torch.ones(20, 2, dtype=torch.float16), 20)
            with case(bits, number):
                for x, total in ((torch.ones(64), 64.0), (-torch.ones(64), -64.0), (signs, 0.0)):
                    y = project(x.expand(3, 64), stored)
                    assert torch.allclose(y, torch.full((3, 20), total * number), rtol=1e-6, atol=1e-4), (bits, number)


def test_the_best_of_several_scales_is_better_than_the_largest_numbers_own() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))
    groups = weight.unflatten(1, (-1, 32))
    scale = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8  # as llama.cpp's q4_0
    plain = ((groups / scale).round().clamp(-8, 7) * scale).flatten(1)
    assert (dequantize(*quantize(weight, 4), 4) - weight).norm() < 0.97 * (plain - weight).norm()


def test_stacks_are_multiplied_by_number_and_cut_in_place() -> None:
    weight = torch.randn(3 * 16, 64)
    stack = QuantizedMatrix(*quantize(weight, 8), 16)
    numbers, indices = stack.unpacked(torch.float32).view(3, 16, 64), torch.tensor([[0, 2], [1, 1]])
    x, bias = torch.randn(2, 64), torch.randn(3, 16)
    expected = torch.einsum("nd,nkfd->nkf", x, numbers[indices]) + bias[indices]
    assert distance(stack.product(x, bias, indices), expected) < 1e-4
    one = stack.matrix(2)
    assert torch.equal(one.unpacked(torch.float32), numbers[2])
    assert one.quants.data_ptr() == stack.quants.data_ptr() + 2 * one.quants.nbytes


def test_without_kernels_the_plain_body_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(40, 64)
    packed = QuantizedMatrix(*quantize(weight, 4), 40)
    monkeypatch.setenv(native_library.VARIABLE, "off")
    native_library.library.cache_clear()
    try:
        plain = QuantizedMatrix(*quantize(weight, 4), 40)
        assert plain.lanes == 1
        for stored in (packed, plain):  # also one that kernels were expected for
            x = torch.randn(3, 64)
            assert torch.equal(project(x, stored), nn.functional.linear(x, stored.unpacked(torch.float32)))
        assert all(torch.equal(a, b) for a, b in zip(packed.canonical(), plain.canonical(), strict=True))
        assert torch.equal(packed.embedding(torch.tensor([[3]])), plain.embedding(torch.tensor([[3]])))
    finally:
        native_library.library.cache_clear()


@pytest.mark.parametrize("weights", TYPES)
def test_without_kernels_matrices_are_unpacked_once_and_a_line_says_so(
    weights: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So that a step takes no longer than with plain weights; experts and tables too. What is saved stays packed."""
    monkeypatch.setenv(native_library.VARIABLE, "off")
    native_library.library.cache_clear()
    _warn_of_unpacking.cache_clear()
    try:
        dtype = torch.bfloat16 if weights == "lossless" else torch.float32
        spec = assign(preset("mixtral-tiny"), ["d_model=256", "layers[*].feedforward.expert.d_ff=256"])
        model = build(spec, dtype=dtype).eval()
        assert isinstance(model, Decoder)
        pack_model(model, weights)
        stored = model.state_dict()
        unpacked: list[PackedMatrix] = []
        for kind in (QuantizedMatrix, LosslessMatrix):
            monkeypatch.setattr(kind, "unpacked", noting(kind.unpacked, unpacked))
        tokens = torch.arange(40)[None] % 256
        with torch.inference_mode():
            first, second = model(tokens).logits, model(tokens).logits
        assert unpacked and len(unpacked) == len({id(matrix) for matrix in unpacked})
        assert torch.equal(first, second)
        name = str(dtype).removeprefix("torch.")
        expected = f"packed weights are unpacked to {name}, as there are no native kernels that multiply them"
        assert [record.message for record in caplog.records] == [expected]
        assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    finally:
        monkeypatch.undo()
        native_library.library.cache_clear()


def noting(unpack: Callable[..., Tensor], unpacked: list[PackedMatrix]) -> Callable[..., Tensor]:
    def noted(self: PackedMatrix, *rest: Any) -> Tensor:
        unpacked.append(self)
        return unpack(self, *rest)

    return noted


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_models_of_few_bits_are_saved_and_loaded_to_the_bit(weights: str, tmp_path: Path) -> None:
    for name in ("llama-tiny", "mixtral-tiny", "gemma-tiny", "mamba-tiny", "t5-tiny", "bert-tiny", "bigram-tiny"):
        model = randomize(build(preset(name)))
        before = sum(parameter.nbytes for parameter in model.parameters())
        lm = LanguageModel(model.spec, model).pack(weights)
        assert is_packed(model)
        folder = tmp_path / name
        lm.save(folder)
        with case(name):
            again = load(folder).model
            assert again.dtype == torch.float32
            assert again.state_dict().keys() == model.state_dict().keys()
            for key, tensor in model.state_dict().items():
                assert torch.equal(tensor, again.state_dict()[key]), key
            assert (folder / "model.safetensors").stat().st_size < 0.75 * before
            if isinstance(model, CausalModel):
                tokens = torch.randint(0, model.spec.vocab_size, (2, 9))
                assert torch.equal(model(tokens).logits, again(tokens).logits)
            lm.save(tmp_path / f"{name} again")


def test_a_model_of_few_bits_is_near_its_own(tmp_path: Path) -> None:
    model = randomize(build(preset("llama-tiny")))
    assert isinstance(model, CausalModel)
    tokens = torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = model(tokens).logits.log_softmax(-1)
        LanguageModel(model.spec, model).save(tmp_path / "run")
        divergence = {}
        for weights in ("int8", "int4"):
            logits = load(tmp_path / "run", weights=weights).model(tokens).logits.log_softmax(-1)
            divergence[weights] = (exact.exp() * (exact - logits)).sum(-1).mean().item()
    assert 0 < divergence["int8"] < 1e-4 < divergence["int4"] < 0.05


def test_what_stays_as_it_is() -> None:
    model = build(preset("mixtral-tiny"))
    quantize_model(model, 8)
    names = dict(model.named_parameters())
    assert "blocks.0.feedforward.router.weight" in names and "blocks.0.mixer_norm.weight" in names
    assert not [name for name in names if "mixer.q" in name or "experts" in name or "embedding" in name]
    odd = build(preset("lstm-tiny").replace(d_model=40))
    quantize_model(odd, 8)
    assert not is_packed(odd)  # no row has a multiple of 32 numbers


def test_what_cannot_be_is_said_in_a_line(tmp_path: Path) -> None:
    model = build(preset("llama-tiny"))
    lm = LanguageModel(model.spec, model.eval())
    lm.save(tmp_path / "run")
    with pytest.raises(SpecError, match="weights: 'int5' is not a type of packed weights; use int8, int4 or lossless"):
        load(tmp_path / "run", weights="int5")
    lm.pack("int8")
    with pytest.raises(SpecError, match="weights: the model is already packed"):
        lm.pack("int4")
    with pytest.raises(ArchetypeError, match="model: the format cannot store packed matrices"):
        export(lm, tmp_path / "hf")
    lm.save(tmp_path / "few")
    with pytest.raises(CheckpointError, match="few: has packed matrices, which cannot be trained; start from"):
        train(tmp_path / "further", text=Path(__file__), start_from=tmp_path / "few", steps=1)
    tensors = dict(lm.model.state_dict())
    key = "blocks.0.mixer.q.weight"
    damaged = {
        "shapes": {f"{key}.quants": tensors[f"{key}.quants"][:, :-4].contiguous()},
        "belongs to no parameter": {
            "blocks.9.x.quants": torch.zeros(2, 32, dtype=torch.uint8),
            "blocks.9.x.scales": torch.zeros(2, 1),
        },
        "has unexpected dtypes: torch.int32": {f"{key}.quants": tensors[f"{key}.quants"].int()},
    }
    for message, changes in damaged.items():
        save(Run(tmp_path / "few").weights_file, tensors | changes)
        with case(message), pytest.raises(CheckpointError, match=message):
            read_run_model(Run(tmp_path / "few"))


def test_another_type_of_vectors_leaves_the_stored_numbers() -> None:
    for change in (
        lambda m: m.bfloat16(),
        lambda m: m.to(torch.float64),
        lambda m: m.half().float(),
        lambda m: m.to("cpu"),
    ):
        model = randomize(build(preset("llama-tiny")))
        assert isinstance(model, CausalModel)
        quantize_model(model, 8)
        before = {name: tensor for name, tensor in model.state_dict().items() if name.endswith(("quants", "scales"))}
        tokens = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            exact = model(tokens).logits
            changed = change(model)
            assert all(torch.equal(changed.state_dict()[name], tensor) for name, tensor in before.items())
            logits = changed(tokens).logits
        assert logits.dtype == changed.dtype and distance(logits.to(exact.dtype), exact) < 0.03


def test_kinds_of_models_that_do_not_write() -> None:
    for name in ("bert-tiny", "vit-tiny", "transformer-tiny"):
        model = build(preset(name))
        quantize_model(model, 8)
        assert is_packed(model)
