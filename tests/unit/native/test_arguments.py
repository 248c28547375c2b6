"""What kernels are given cannot be wrong unnoticed: no name, number, pointer, size or type of it."""

import ctypes
from typing import Any

import pytest
import torch

from archetype.native.arguments import OPERATIONS, Arguments, Entry
from archetype.native.kernels import Fused
from archetype.native.operations import Gated, Product
from archetype.native.recorder import Recorder
from tests.helpers.kernels import kernels

GATE, UP, Y = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 4.0]), torch.zeros(2)
SUITABLE: dict[str, Any] = {"y": Y, "gate": GATE, "up": UP, "count": 2, "activation": "silu", "type": torch.float32}
X, WEIGHT, PRODUCT = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.zeros(1, 1)


def gated(**changes: Any) -> Gated:
    return Gated(**(SUITABLE | changes))


def product(**changes: Any) -> Product:
    return Product(**({
        "y": PRODUCT, "x": X, "w": WEIGHT, "bias": None, "indices": None, "scales": None, "high_bytes": None,
        "starts": None, "exceptions": None, "vectors": 1, "rows": 1, "features": 2, "x_stride": 2, "w_stride": 2,
        "y_stride": 1, "choices": 1, "matrices": 1, "matrix_stride": 0, "x_type": torch.float32,
        "w_type": torch.float32, "bias_type": torch.float32, "y_type": torch.float32,
    } | changes))  # fmt: skip


def test_suitable_arguments_are_computed_and_keep_their_tensors() -> None:
    entry = gated()
    Fused(kernels("native")).emit(entry)
    assert torch.allclose(Y, torch.nn.functional.silu(GATE) * UP)
    assert entry.writes == (Y,) and {id(x) for x in entry.tensors} == {id(Y), id(GATE), id(UP)}
    Fused(kernels("native")).emit(product())
    assert PRODUCT.item() == 11


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"gate": None}, "gated: gate cannot be None"),
        ({"activation": "tanhh"}, "gated: activation cannot be 'tanhh'"),
        ({"type": torch.int64}, "gated: type cannot be torch.int64"),
        ({"count": 2.5}, "gated: count cannot be 2.5"),
        ({"rows": 2}, "gated: no such argument: rows"),
    ],
)
def test_what_no_kernel_knows_is_refused_by_name(changes: dict[str, Any], cause: str) -> None:
    with pytest.raises(TypeError, match=cause):
        gated(**changes)


def test_what_is_missing_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="gated: up is missing"):
        Gated(**{name: value for name, value in SUITABLE.items() if name != "up"})
    strides = dict.fromkeys(("x_strides", "w_strides", "y_strides"), (1, 1))
    batched = next(operation for operation in OPERATIONS if operation.operation == "batched_product")
    tensors: dict[str, Any] = {"y": Y, "x": Y, "w": Y}
    with pytest.raises(TypeError, match=r"batched_product: x_strides cannot be \(1, 1\)"):
        batched(**tensors, batch=1, rows=1, columns=1, features=1, **strides)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (gated(count=-1), "gated: count"),
        (product(x_stride=-2), "product: x_stride"),
        (product(w_type="int4"), "product: combination of fields"),
        (product(w_type="lossless"), "product: combination of fields"),
        (product(w_type=torch.bool), "product: combination of fields"),
    ],
)
def test_sizes_and_parts_that_cannot_be_are_refused_before_anything_is_computed(
    arguments: Arguments, cause: str
) -> None:
    library = kernels("native")
    for emitter in (Fused(library), Recorder(library, [])):
        with pytest.raises(ValueError, match=cause):
            emitter.emit(arguments)


def test_bytes_that_are_overwritten_are_refused() -> None:
    """Whatever wrote them: pointers, types and numbers are looked at where the kernels read them."""
    library = kernels("native")
    for operation in OPERATIONS:
        size = ctypes.sizeof(operation)
        for fill, cause in ((0, r"missing|\w+"), (0xFF, "missing")):
            raw = (ctypes.c_char * size).from_buffer_copy(bytes([fill]) * size)
            with pytest.raises(ValueError, match=cause):
                library.run(Entry(operation.number, False, False, ctypes.addressof(raw)), 1, 1)
    for name, value in (("gate", None), ("type", 2), ("activation", 2), ("activation", -1)):
        arguments = gated()
        setattr(arguments, name, value)
        with pytest.raises(ValueError, match=f"gated: {name}: missing, negative or invalid"):
            library.run(arguments.entry(True), 1, 1)


@pytest.mark.parametrize("number", [-1, len(OPERATIONS), 2**31 - 1])
def test_a_wrong_operation_is_refused_and_nothing_before_it_computed(number: int) -> None:
    library, arguments = kernels("native"), gated()
    entries = (Entry * 2)(arguments.entry(True), arguments.entry(True))
    entries[1].operation = number
    Y.zero_()
    with pytest.raises(ValueError, match=f"there is no operation {number}"):
        library.run(entries, 2, 2)
    entries[1] = Entry(arguments.number)
    with pytest.raises(ValueError, match="gated: arguments: missing"):
        library.run(entries, 2, 2)
    assert Y.tolist() == [0, 0]
    library.run(entries, 1, 2)
    assert Y.any()
