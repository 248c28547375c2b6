"""Tensors in one file or many; a hostile or damaged folder gives one line and nothing else."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from archetype.errors import CheckpointError
from archetype.io.tensors import Tensors, dtype_of, save
from archetype.io.weight_files import INDEX, SINGLE

A, B = torch.arange(6.0).view(2, 3), torch.arange(4.0) + 10
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        tensors = Tensors.open(folder)
        for name in tensors.names():
            tensors.mapped(name)
    return str(caught.value)


def index(folder: Path, **places: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": A}, tmp_path / FIRST)
    save_file({"b": B}, tmp_path / SECOND)
    index(tmp_path, a=FIRST, b=SECOND)
    return tmp_path


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("whole") / SINGLE
    save_file({"a": A, "b": B}, file)
    return file.read_bytes()


def raw(entries: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def test_one_file_is_read_as_it_was_saved(tmp_path: Path) -> None:
    save(tmp_path / SINGLE, {"a": A.t(), "b": B[::2]})
    tensors = Tensors.open(tmp_path)
    assert sorted(tensors.names()) == ["a", "b"]
    assert tensors.shape("a") == (3, 2)
    assert torch.equal(tensors.mapped("a"), A.t())
    with tensors.copied("b") as b:
        assert torch.equal(b, B[::2])


def test_shards_are_read_by_their_index(sharded: Path) -> None:
    tensors = Tensors.open(sharded)
    assert tensors.names() == ["a", "b"]
    assert tensors.shape("a") == (2, 3)
    assert torch.equal(tensors.mapped("a"), A)
    assert torch.equal(tensors.mapped("b"), B)


def test_a_saved_file_replaces_another_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / SINGLE, {"a": A})

    def full(tensors: Any, file: Path, metadata: Any) -> None:
        from safetensors import SafetensorError

        file.write_bytes(b"half")
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("archetype.io.tensors.save_file", full)
    with pytest.raises(CheckpointError, match=rf"{SINGLE}: cannot be written: No space left .*; free some space"):
        save(tmp_path / SINGLE, {"a": B})
    assert [path.name for path in tmp_path.iterdir()] == [SINGLE]
    assert torch.equal(Tensors.open(tmp_path).mapped("a"), A)


def test_a_file_cut_short_anywhere_is_named(tmp_path: Path, whole: bytes) -> None:
    for length in range(len(whole)):
        (tmp_path / SINGLE).write_bytes(whole[:length])
        assert refusal(tmp_path).startswith(f"{tmp_path / SINGLE}: is not a complete safetensors file: ")


def test_a_file_that_goes_on_after_its_end_is_named(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / SINGLE).write_bytes(whole + b"\0")
    assert refusal(tmp_path).startswith(f"{tmp_path / SINGLE}: is not a complete safetensors file: ")


@given(st.binary(max_size=64))
def test_garbage_is_named(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    (folder / SINGLE).write_bytes(garbage)
    assert refusal(folder).startswith(f"{folder / SINGLE}: is not a complete safetensors file: ")


def test_a_flipped_bit_in_the_header_is_refused_or_changes_names_only(tmp_path: Path, whole: bytes) -> None:
    (size,) = struct.unpack("<Q", whole[:8])
    refused, renamed = 0, 0
    for bit in range(0, 8 * (8 + size), 3):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / SINGLE).write_bytes(flipped)
        try:
            tensors = Tensors.open(tmp_path)
            mapped = {name: tensors.mapped(name) for name in tensors.names()}
        except CheckpointError as error:
            assert SINGLE in error.place
            refused += 1
        else:
            assert set(mapped) != {"a", "b"}  # so that no model takes it
            assert all(torch.equal(mapped[name], value) for name, value in (("a", A), ("b", B)) if name in mapped)
            renamed += 1
    assert refused > 8 * size * 0.8 / 3
    assert renamed >= 2


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**62]}}, 8),
        ({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 8]}}, 8),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}, 8),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, 8),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8),
        ({n: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for n in "ab"}, 8),
        ({"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, 8),
        ({"a": [1]}, 0),
    ],
    ids=["past the end", "overflow", "negative", "backwards", "hole", "overlap", "type", "no entry"],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entries: dict[str, Any], size: int) -> None:
    (tmp_path / SINGLE).write_bytes(raw(entries, b"\0" * size))
    assert refusal(tmp_path).startswith(f"{tmp_path / SINGLE}: is not a complete safetensors file: ")


OUTSIDE = ["../x", "..", ".", "", "/etc/passwd", "a\\b", "..\\x", "sub/x.safetensors", "sub/../x"]


@pytest.mark.parametrize("shard", OUTSIDE)
def test_no_shard_lies_outside_the_folder(sharded: Path, shard: str) -> None:
    (sharded / "sub").mkdir()
    for place in (sharded / "sub" / "x.safetensors", sharded / "a\\b", sharded.parent / "x"):
        save_file({"b": B}, place)
    index(sharded, a=FIRST, b=shard)
    expected = f"{sharded / INDEX}: weight_map: b: {shard!r} points outside the model's folder"
    assert refusal(sharded).startswith(expected)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    assert refusal(sharded).startswith(f"{sharded / INDEX}: weight_map: b: {SECOND!r} is missing")


def test_a_damaged_shard_is_named(sharded: Path) -> None:
    (sharded / SECOND).write_bytes((sharded / SECOND).read_bytes()[:-1])
    assert refusal(sharded).startswith(f"{sharded / SECOND}: is not a complete safetensors file: ")


def test_a_tensor_that_its_shard_lacks_is_named(sharded: Path) -> None:
    index(sharded, a=FIRST, b=SECOND, c=SECOND)
    assert refusal(sharded) == f"{sharded / INDEX}: c: is not in {SECOND}; download the checkpoint again"


def test_a_tensor_that_the_index_lacks_is_named(sharded: Path) -> None:
    save_file({"b": B, "c": A}, sharded / SECOND)
    assert refusal(sharded) == f"{sharded / INDEX}: c: is in a shard but not in the index; fix the index"


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"\xff\xfe", b"null", b"[]", b"7", b'"weight_map"', b"{}", b'{"weight_map": null}',
        b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b'{"weight_map": {"a": [1]}}',
        b'{"weight_map": {"a": null}}', b"[" * 100_000, b'{"weight_map":' * 100_000, b"1" * 5000,
    ],
    ids=lambda text: str(text[:28]),
)  # fmt: skip
def test_a_damaged_index_is_named(sharded: Path, text: bytes) -> None:
    (sharded / INDEX).write_bytes(text)
    assert refusal(sharded).startswith(f"{sharded / INDEX}:")


def test_names_out_of_a_file_cannot_steer_the_terminal(sharded: Path) -> None:
    index(sharded, **{"\x1b[31ma\ud800\nb\x00": "\x1b]0;x\x07"})
    message = refusal(sharded)
    assert message.isprintable()
    assert "\\x1b" in message


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> Any:
        return Path.touch, (self.sprung,)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_a_pickled_checkpoint_is_refused_unread(tmp_path: Path, file: str) -> None:
    sprung = tmp_path / "sprung"
    (tmp_path / file).write_bytes(pickle.dumps(Trap(sprung)))
    known = file == "pytorch_model.bin"
    remedy = f"{file} is a pickle: `archetype import --allow-pickle`" if known else f"convert {file} to safetensors"
    assert remedy in refusal(tmp_path)
    assert not sprung.exists()
    pickle.loads((tmp_path / file).read_bytes())  # the trap works
    assert sprung.exists()


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    expected = f"{tmp_path}: there is neither {SINGLE} nor {INDEX}; is it a model folder?"
    assert refusal(tmp_path) == expected


QUANTIZED = {
    "I8": 1, "U8": 1, "I16": 2, "I32": 4, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 0.5,
    "F6_E2M3": 0.75, "C64": 8,
}  # fmt: skip


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_tensors_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    size = int(8 * QUANTIZED[kind])
    (tmp_path / SINGLE).write_bytes(raw({"w": {"dtype": kind, "shape": [8], "data_offsets": [0, size]}}, b"\0" * size))
    message = refusal(tmp_path)
    assert message.startswith("w: ")
    assert message.endswith("; there is no quantization_config that explains it")


def test_types_are_known_by_name() -> None:
    assert dtype_of(None) is None
    assert dtype_of("bfloat16") is torch.bfloat16
    with pytest.raises(CheckpointError, match="dtype: unknown dtype 'float8'; use one of float32, "):
        dtype_of("float8")
