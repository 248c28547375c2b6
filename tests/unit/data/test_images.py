"""Pictures from a .npz file: what is read, what is refused, and batches as a function of the seed and the step."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archetype.data.images import ImageBatches, Images, read_images
from archetype.errors import DataError

PLAIN = "is not an .npz file of plain numbers; write it with numpy.savez"
PIXELS, LABELS = "use an array of shape (N, C, H, W)", "use integer labels of shape (N,)"


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "images.npz", **arrays)
    return folder / "images.npz"


def refusal(file: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_images(file)
    assert caught.value.place == str(file)
    return str(caught.value).removeprefix(f"{file}: ")


def images(count: int = 10, size: int = 2) -> Images:
    pixels = np.arange(count * size * size, dtype=np.float32).reshape(count, 1, size, size)
    return Images(pixels, np.arange(count))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64, bool])
def test_numbers_of_every_type_are_read_as_float32(tmp_path: Path, dtype: type) -> None:
    pixels = np.arange(24).reshape(2, 3, 2, 2).astype(dtype)
    dataset = read_images(saved(tmp_path, images=pixels, labels=np.array([1, 0], dtype=np.uint8)))
    assert (dataset.images.dtype, dataset.labels.dtype) == (np.float32, np.int64)
    assert (dataset.images == pixels).all() and dataset.labels.tolist() == [1, 0]


def test_pictures_without_channels_have_one(tmp_path: Path) -> None:
    pixels = np.arange(8.0).reshape(2, 2, 2)
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "grey.npz", images=pixels, labels=[0, 1])
        assert (read_images(tmp_path / "grey.npz").images == pixels[:, None]).all()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.npz") == "there is no such file; check the path"


NO_ARCHIVES = {"empty": b"", "zip": b"PK", "text": b"text", "npy": b"\x93NUMPY\x01\x00", "pickle": pickle.dumps([1, 2])}


@pytest.mark.parametrize("content", NO_ARCHIVES.values(), ids=NO_ARCHIVES)
def test_what_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    assert refusal(tmp_path / "a.npz") == PLAIN


def test_a_lone_array_and_a_folder_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert refusal(tmp_path / "a.npy") == PLAIN
    assert refusal(tmp_path) == "is not a regular file; copy its contents to a file"


@pytest.mark.parametrize("name", ["images", "labels"])
def test_a_missing_array_is_named(tmp_path: Path, name: str) -> None:
    arrays = {"images": np.zeros((2, 2, 2)), "labels": np.array([0, 1])}
    arrays.pop(name)
    assert refusal(saved(tmp_path, **arrays)) == f"contains no array named {name}; save the file with an array {name}"


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    file = tmp_path / "images.npz"
    np.savez_compressed(file, images=np.random.default_rng(0).random((2, 3, 3)), labels=[0, 1])
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        assert refusal(file)
    refused = 0
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        file.write_bytes(flipped)
        try:
            read_images(file)  # a date or a comment may have changed; anything but a refusal in words fails
        except DataError:
            refused += 1
    assert refused > len(whole) / 2


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (tmp_path / "executed",))  # type: ignore[return-value]

    trap = np.array([Trap(), Trap()], dtype=object)
    file = saved(tmp_path, images=trap, labels=np.array([0, 1]))
    assert refusal(file) == PLAIN
    assert refusal(saved(tmp_path, images=np.zeros((2, 2, 2)), labels=trap)) == PLAIN
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(trap))  # a control: unpickled, it is executed
    assert (tmp_path / "executed").exists()


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    labels = io.BytesIO()
    np.save(labels, np.array([0, 1]))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", b"not an array")
        archive.writestr("labels.npy", labels.getvalue())
    assert refusal(tmp_path / "a.npz") == PLAIN


@pytest.mark.parametrize(
    ("images", "labels", "cause"),
    [
        (np.zeros((2, 4)), [0, 1], "has images of (2, 4) float64; " + PIXELS),
        (np.zeros((2, 1, 1, 1, 1)), [0, 1], "has images of (2, 1, 1, 1, 1) float64; " + PIXELS),
        (np.zeros((2, 3, 3)), [0, 1, 1], "has 2 images and labels of (3,) int64; " + LABELS),
        (np.zeros((2, 3, 3)), [[0, 1]], "has 2 images and labels of (1, 2) int64; " + LABELS),
        (np.zeros((2, 3, 3)), [0.0, 1.0], "has 2 images and labels of (2,) float64; " + LABELS),
        (np.zeros((2, 3, 3)), ["a", "b"], "has 2 images and labels of (2,) <U1; " + LABELS),
        (np.zeros((0, 3, 3)), np.zeros(0, int), "has images of (0, 1, 3, 3) float64; " + PIXELS),
        (np.zeros((2, 0, 0)), [0, 1], "has images of (2, 1, 0, 0) float64; " + PIXELS),
        (np.full((2, 3, 3), "x"), [0, 1], "has images of (2, 1, 3, 3) <U1; " + PIXELS),
        (np.zeros((2, 3, 3), complex), [0, 1], "has images of (2, 1, 3, 3) complex128; " + PIXELS),
    ],
)
def test_other_shapes_and_types_are_refused(tmp_path: Path, images: Any, labels: Any, cause: str) -> None:
    assert refusal(saved(tmp_path, images=images, labels=labels)) == cause


@pytest.mark.parametrize(
    ("pixel", "label", "cause"),
    [
        *((pixel, 0, "contains a number that is not finite") for pixel in (np.nan, np.inf, 1e300)),
        *((0.0, label, "contains a negative label") for label in (-1, np.uint64(2**64 - 1))),
    ],
)
def test_numbers_that_cannot_be_learned_are_refused(tmp_path: Path, pixel: float, label: int, cause: str) -> None:
    pixels = np.zeros((2, 3, 3))
    pixels[1, 2, 2] = pixel
    labels = np.array([0, label], dtype=type(label))
    assert refusal(saved(tmp_path, images=pixels, labels=labels)) == f"{cause}; fix the file"


def test_a_share_is_held_out_by_the_seed() -> None:
    training, held_out = images(40).split(0.25, 3)
    assert (len(training), len(held_out)) == (30, 10)
    assert sorted([*training.labels, *held_out.labels]) == list(range(40))
    assert (held_out.images[:, 0, 0, 0] == held_out.labels * 4).all()  # each with its own label
    again, other = images(40).split(0.25, 3)[1], images(40).split(0.25, 4)[1]
    assert again.labels.tolist() == held_out.labels.tolist() != other.labels.tolist()


def test_too_few_to_hold_some_out_are_refused() -> None:
    with pytest.raises(DataError, match="images: 1 are too few for training and validation; add more images"):
        images(1).split(0.1, 0)


def test_the_fingerprint_follows_pixels_and_labels() -> None:
    first = images()
    for changed in (Images(first.images + 1, first.labels), Images(first.images, first.labels[::-1])):
        assert changed.fingerprint != images().fingerprint == first.fingerprint


@pytest.mark.parametrize(("count", "batch_size"), [(10, 3), (10, 5), (4, 9)])
def test_an_epoch_has_each_once_in_an_order_of_the_seed_and_the_epoch(count: int, batch_size: int) -> None:
    def seen(seed: int, epoch: int) -> list[int]:
        batches = ImageBatches(images(count), batch_size, seed)
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        return [int(label) for step in steps for label in batches.batch(step).labels]

    first = seen(0, 0)
    assert len(first) == len(set(first)) > count - min(batch_size, count)
    assert first == seen(0, 0)
    assert first != seen(0, 1) and first != seen(1, 0)
