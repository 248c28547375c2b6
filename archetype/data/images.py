"""Labelled images from a .npz file or a folder.

The model's image processor converts image files and uint8 pixels in a .npz file. Other arrays in a .npz file are read
as model inputs.
"""

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from archetype.convert.image_processor import ImageProcessor
from archetype.data.picture import decode_picture
from archetype.data.skipping import skip
from archetype.errors import DataError
from archetype.io.files import check_regular, read_bytes

MAX_ARRAY_BYTES = 2**30
MAX_PICTURE_BYTES = 2**28
Numbers = npt.NDArray[np.float32]
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class OtherSize(DataError):
    """The size of the images differs from the model's input size."""


@dataclass(frozen=True)
class Images:
    """Images, (N, C, H, W) in float32, and their class indices, (N,)."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: npt.NDArray[np.int64]) -> "Images":
        return Images(self.images[indices], self.labels[indices])

    def split(self, validation_fraction: float, seed: int) -> tuple["Images", "Images"]:
        """Split at random into training and validation images, depending on the seed. Refuse an empty split."""
        # 2**40: no epoch of `ImageBatches` has this key
        order = np.random.Generator(np.random.Philox(key=[seed, 2**40])).permutation(len(self))
        cut = round(len(self) * (1 - validation_fraction))
        if not 0 < cut < len(self):
            raise DataError("images", f"{len(self)} are too few for training and validation", "add more images")
        return self.select(order[:cut]), self.select(order[cut:])

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()


def open_images(path: Path, num_channels: int, size: int, processor: ImageProcessor | None) -> Images:
    """Read the labelled images in a .npz file or in a folder with a subfolder per class.

    Args:
        num_channels: number of input channels of the model.
        size: input height and width in pixels.
        processor: image processor that converts pixels to model inputs, if the model has an image processor.

    Raises:
        DataError: the images have another size, or cannot be read.
    """
    if path.is_dir():
        return read_image_folder(path, num_channels, size, processor)
    images = read_images(path, processor)
    _check_size(images.images.shape[1:], num_channels, size, str(path))
    return images


def open_pictures(file: Path, num_channels: int, size: int, processor: ImageProcessor | None) -> Numbers:
    """Read a .npz file or an image file, (N, C, H, W). Arguments and errors are those of `open_images`."""
    if file.suffix.lower() in IMAGE_SUFFIXES:
        data = read_bytes(file, MAX_PICTURE_BYTES)
        return picture_numbers(data, num_channels, size, processor, str(file))[None]
    images = read_pictures(file, processor)
    _check_size(images.shape[1:], num_channels, size, str(file))
    return images


def picture_numbers(
    data: bytes, num_channels: int, size: int, processor: ImageProcessor | None, place: str = "image"
) -> Numbers:
    """Decode the bytes of an image file to model inputs, (C, H, W). Other arguments are those of `open_images`."""
    if processor is None:
        cause = "the model has no image processor"
        raise DataError(place, cause, "add its preprocessor_config.json, or use an .npz file of model inputs")
    pixels = processor.numbers(decode_picture(data, num_channels, place, on_white=processor.do_convert_rgb))
    _check_size(pixels.shape, num_channels, size, place)
    return pixels


def _check_size(shape: tuple[int, ...], num_channels: int, size: int, place: str) -> None:
    expected = (num_channels, size, size)
    if shape != expected:
        actual, taken = (" x ".join(map(str, sizes)) for sizes in (shape, expected))
        raise OtherSize(place, f"the images are {actual}, but the model takes {taken}", "change one of them")


def read_images(file: Path, processor: ImageProcessor | None = None) -> Images:
    """Read `images` and `labels` from a .npz file, as `read_pictures` does."""
    images, labels = read_pictures(file, processor), _array(file, "labels")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        cause = f"has {len(images)} images and labels of {labels.shape} {labels.dtype}"
        raise DataError(str(file), cause, "use integer labels of shape (N,)")
    labels = labels.astype(np.int64)
    if labels.min() < 0:
        raise DataError(str(file), "contains a negative label", "fix the file")
    return Images(images, labels)


def class_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def read_image_folder(folder: Path, num_channels: int, size: int, processor: ImageProcessor | None) -> Images:
    """Read the images in a folder with one subfolder per class, sorted by name. Arguments: see `open_images`."""
    classes = class_names(folder)
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        cause = f"the {len(classes)} subfolders contain no images ({', '.join(IMAGE_SUFFIXES)})"
        raise DataError(str(folder), cause, "add a subfolder for each class")
    # refused before any image is decoded; 4 bytes: float32
    if len(files) * num_channels * size**2 * 4 > MAX_ARRAY_BYTES:
        cause = f"the {len(files):,} images take more than {MAX_ARRAY_BYTES >> 20:,} MiB"
        raise DataError(str(folder), cause, "use fewer images, or use a model with a smaller input")
    images, labels = np.empty((len(files), num_channels, size, size), dtype=np.float32), list[int]()
    for file, label in files:
        try:
            images[len(labels)] = open_pictures(file, num_channels, size, processor)[0]
            labels.append(label)
        except DataError as error:
            skip(error)
    if not labels:
        raise DataError(str(folder), f"no image of {len(files):,} can be read", "check the files")
    return Images(images[: len(labels)], np.array(labels))


def read_pictures(file: Path, processor: ImageProcessor | None = None) -> Numbers:
    """Read `images` from a .npz file, (N, C, H, W). An array (N, H, W) is read as one channel.

    The processor converts uint8 pixels to model inputs. Without a processor, they are cast to float32.

    Raises:
        DataError: an array is missing or has the wrong shape or type; the message names the file.
    """
    images = _array(file, "images")
    images = images[:, None] if images.ndim == 3 else images
    if images.dtype.kind not in "biuf" or images.ndim != 4 or not images.size:
        raise DataError(str(file), f"has images of {images.shape} {images.dtype}", "use an array of shape (N, C, H, W)")
    if images.dtype == np.uint8 and processor is not None:
        return np.stack([processor.numbers(pixels) for pixels in images])
    with np.errstate(over="ignore"):  # overflow gives inf, which is refused below
        images = images.astype(np.float32, copy=False)
    if not np.isfinite(images).all():
        raise DataError(str(file), "contains a number that is not finite", "fix the file")
    return images


def has_pixels(path: Path) -> bool:
    """Return whether a folder or file contains pixels, which need an image processor, rather than model inputs."""
    is_picture = path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES
    return is_picture or _array(path, "images").dtype == np.uint8


def has_pictures(folder: Path) -> bool:
    """Return whether the first file found in a folder's subfolders is an image."""
    return any(file.suffix.lower() in IMAGE_SUFFIXES for file in islice(folder.glob("*/*"), 1))


def shape_of_images(path: Path) -> tuple[int, int, int] | None:
    """Return channels, height and number of classes in a .npz file; None for a folder, whose images are resized."""
    if path.is_dir():
        return None
    images, labels = _array(path, "images"), _array(path, "labels")
    if images.ndim not in (3, 4) or labels.dtype.kind not in "iu" or not labels.size:
        read_images(path)  # raises the error
    return (images.shape[1] if images.ndim == 4 else 1), images.shape[-2], int(labels.max()) + 1


def _array(file: Path, name: str) -> npt.NDArray[Any]:
    # allow_pickle=False: unpickling would run code from the file
    check_regular(file)
    try:
        # not np.load: the size is checked before the array is unpacked
        with zipfile.ZipFile(file) as arrays, arrays.open(f"{name}.npy") as stored:
            if arrays.getinfo(f"{name}.npy").file_size > MAX_ARRAY_BYTES:
                cause = f"{name} has more than {MAX_ARRAY_BYTES >> 20:,} MiB unpacked"
                raise DataError(str(file), cause, "use fewer or smaller images")
            return np.lib.format.read_array(stored, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(str(file), "there is no such file", "check the path") from None
    except KeyError:
        raise DataError(str(file), f"contains no array named {name}", f"save the file with an array {name}") from None
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise DataError(str(file), "is not an .npz file of plain numbers", "write it with numpy.savez") from None


class ImageBatches:
    """Batches of images in an order that depends on seed and epoch. An image occurs at most once per epoch."""

    def __init__(self, images: Images, batch_size: int, seed: int) -> None:
        self.images = images
        self.batch_size = min(batch_size, len(images))
        self.seed = seed
        self.per_epoch = len(images) // self.batch_size

    def batch(self, step: int) -> Images:
        epoch, index = divmod(step, self.per_epoch)
        order = np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(len(self.images))
        return self.images.select(order[index * self.batch_size : (index + 1) * self.batch_size])
