"""Matrices of bfloat16 in 12 bits: the same numbers, and products to the same bits, in every file and machine."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from archetype import export, load
from archetype.api.language_model import LanguageModel
from archetype.errors import CheckpointError, SpecError
from archetype.families import preset
from archetype.io.tensors import save
from archetype.models.build import build
from archetype.models.causal import CausalModel
from archetype.native import library as native_library
from archetype.native.kernels import Fused
from archetype.native.library import Library
from archetype.native.products import product, tile_product
from archetype.runs.directory import Run, read_run_model
from archetype.spec import Decoder
from archetype.weights import lossless
from archetype.weights.linear import project
from archetype.weights.lossless import LosslessMatrix, compress, decompress
from archetype.weights.packed import is_packed
from tests.helpers.cases import case
from tests.helpers.kernels import INSTRUCTIONS, kernels
from tests.helpers.weights import randomize

SHAPES = ((64, 128), (96, 768), (335, 896), (300, 352), (250, 2048), (415, 700))


def weights(rows: int, width: int) -> Tensor:
    """Numbers as a trained matrix has them, with rare ones at the corners of blocks."""
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).mul(0.02).bfloat16()
    weight[0, :3], weight[1], weight[2, 5], weight[4, 1] = 0, 0, 100, -0.0
    weight[31, width - 1], weight[rows - 1, 0], weight[rows - 2, width - 1] = -50, 3e-12, 77
    return weight


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int16)


def packed(weight: Tensor) -> LosslessMatrix:
    stored = compress(weight)
    assert stored is not None, weight.shape
    return LosslessMatrix(stored)


def wide(name: str) -> CausalModel:
    """A small model whose rows are long enough to be packed."""
    model = build(preset(name).replace(d_model=256), dtype=torch.bfloat16)
    assert isinstance(model, CausalModel)
    return randomize(model)


@pytest.fixture(params=INSTRUCTIONS)
def own_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """The kernels for a set of instructions, in place of the machine's own."""
    library = kernels(request.param)
    monkeypatch.setattr(lossless, "library", lambda: library)
    monkeypatch.setattr("archetype.native.kernels.library", lambda: library)
    return library


@pytest.mark.usefixtures("own_kernels")
def test_numbers_are_unpacked_to_the_bit() -> None:
    for rows, width in SHAPES:
        weight = weights(rows, width)
        weight[3, 7], weight[rows - 3, 9] = float("nan"), -float("inf")
        matrix = packed(weight)
        ids = torch.tensor([[0, rows - 1, 31], [rows - 2, 3, 32]])
        with case(rows, width):
            assert len(matrix.exceptions) > 0
            assert torch.equal(bits(decompress(matrix.stored)), bits(weight))
            assert torch.equal(bits(matrix.unpacked(torch.bfloat16)), bits(weight))
            assert torch.equal(matrix.unpacked(torch.float32).nan_to_num(), weight.float().nan_to_num())
            assert torch.equal(bits(matrix.embedding(ids)), bits(weight[ids]))


def test_products_are_those_of_bfloat16_to_the_bit(own_kernels: Library) -> None:
    recorder = Fused(own_kernels)
    for rows, width in SHAPES:
        weight = weights(rows, width)
        matrix, bias = packed(weight), torch.randn(rows).bfloat16()
        for vectors in (1, 2, 5, 16, 40, 100, 300):
            x = torch.randn(vectors, width).bfloat16()
            with case(rows, width, vectors):
                for function in (product, tile_product):
                    ours, theirs = function(recorder, x, matrix.stored, bias), function(recorder, x, weight, bias)
                    assert (ours is None) == (theirs is None)
                    assert ours is None or theirs is None or torch.equal(bits(ours), bits(theirs))
        x = torch.randn(5, width)
        ours, theirs = (product(recorder, x, numbers) for numbers in (matrix.stored, weight.float()))
        assert ours is not None and theirs is not None and torch.equal(ours, theirs)


def test_stacks_are_multiplied_by_number_and_cut_in_place(own_kernels: Library) -> None:
    weight = torch.stack([weights(64, 256), weights(64, 256).flip(0), weights(64, 256) * 3])
    stack, indices = packed(weight), torch.tensor([[0, 2], [1, 1]])
    x, bias = torch.randn(2, 256).bfloat16(), torch.randn(3, 64).bfloat16()
    recorder = Fused(own_kernels)
    ours, theirs = (product(recorder, x, matrix, bias, indices) for matrix in (stack.stored, weight))
    assert ours is not None and theirs is not None and torch.equal(bits(ours), bits(theirs))
    one = stack.matrix(2)
    assert one.records.data_ptr() == stack.records.data_ptr() + 2 * one.records.nbytes
    assert torch.equal(one.unpacked(torch.bfloat16), weight[2]) and torch.equal(decompress(one.stored), weight[2])


def test_what_is_no_gain_stays_as_it_is() -> None:
    uniform_bits = torch.randint(-(2**15), 2**15, (64, 256), dtype=torch.int16).view(torch.bfloat16)
    for weight in (weights(64, 128)[:, :64], weights(64, 128)[:31], weights(96, 128).view(2, 48, 128), uniform_bits):
        with case(*weight.shape):
            assert compress(weight) is None
    matrix = packed(weights(320, 768))
    assert sum(buffer.nbytes for buffer in matrix.buffers()) < 0.76 * 2 * 320 * 768


def test_a_model_gives_the_same_logits_to_the_bit(tmp_path: Path) -> None:
    for name in ("llama-tiny", "mixtral-tiny", "gpt2-tiny", "mamba-tiny", "deepseek-v2-tiny"):
        model = wide(name)
        lm = LanguageModel(model.spec, model)
        lm.save(tmp_path / name)
        tokens = torch.randint(0, model.spec.vocab_size, (2, 9))
        again = load(tmp_path / name, weights="lossless")
        with case(name), torch.no_grad():
            assert is_packed(again.model) and again.model.dtype == torch.bfloat16
            assert isinstance(again.model, CausalModel)
            assert torch.equal(bits(again.model(tokens).logits), bits(model(tokens).logits))


def test_models_are_saved_loaded_and_exported_to_the_bit(tmp_path: Path) -> None:
    model = wide("llama-tiny")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lm = LanguageModel(model.spec, model).pack("lossless")
    lm.save(tmp_path / "run")
    again = load(tmp_path / "run").model
    assert is_packed(again) and again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert (tmp_path / "run" / "model.safetensors").stat().st_size < 0.85 * sum(t.nbytes for t in state.values())
    export(lm, tmp_path / "packed", format="gguf")
    plain = build(model.spec, dtype=torch.bfloat16)
    plain.load_state_dict(state)
    export(LanguageModel(plain.spec, plain), tmp_path / "plain", format="gguf")
    ours, theirs = (next((tmp_path / folder).glob("*.gguf")).read_bytes() for folder in ("packed", "plain"))
    assert ours == theirs


def test_without_kernels_the_plain_body_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weights(96, 256)
    monkeypatch.setenv(native_library.VARIABLE, "off")
    native_library.library.cache_clear()
    try:
        matrix, x = packed(weight), torch.randn(3, 256).bfloat16()
        assert torch.equal(project(x, matrix), project(x, weight))
        assert torch.equal(matrix.embedding(torch.tensor([[3]])), weight[torch.tensor([[3]])])
    finally:
        native_library.library.cache_clear()


def test_what_cannot_be_is_said_in_a_line(tmp_path: Path) -> None:
    spec = preset("llama-tiny").replace(d_model=256)
    assert isinstance(spec, Decoder)
    with pytest.raises(SpecError, match="weights: lossless weights need bfloat16 on cpu; the model has float32"):
        LanguageModel(spec, build(spec)).pack("lossless")
    model, key = wide("llama-tiny"), "blocks.0.mixer.q.weight"
    with torch.no_grad():
        model.get_parameter(key)[0, 0] = 1e-12  # an exception
    lm = LanguageModel(spec, model).pack("lossless")
    with pytest.raises(SpecError, match="weights: lossless weights need device cpu, not meta"):
        packed(weights(64, 256)).to("meta")
    lm.save(tmp_path / "run")
    tensors = dict(lm.model.state_dict())
    exceptions, starts = tensors[f"{key}.exceptions"], tensors[f"{key}.starts"].clone()
    starts[1] += len(exceptions) + 1  # and the next row begins before
    in_no_row = "exceptions outside its rows"
    damaged = [
        ("have the shapes", {f"{key}.records": tensors[f"{key}.records"][..., :-4].contiguous()}),
        ("unexpected dtypes: torch.int32", {f"{key}.records": tensors[f"{key}.records"].int()}),
        (in_no_row, {f"{key}.exceptions": exceptions.new_tensor([2**30] * len(exceptions))}),
        (in_no_row, {f"{key}.starts": starts}),
    ]
    for message, changes in damaged:
        save(Run(tmp_path / "run").weights_file, tensors | changes)
        with case(message), pytest.raises(CheckpointError, match=message):
            read_run_model(Run(tmp_path / "run"))
