"""Images and their classes, from a .npz file or a folder."""

import hashlib
import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from archetype.errors import DataError
from archetype.io.files import check_regular

MAX_ARRAY_BYTES = 2**30
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True)
class Images:
    """Images, (N, C, H, W) in float32, and the class of each, (N,)."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: npt.NDArray[np.int64]) -> "Images":
        """The images at these indices."""
        return Images(self.images[indices], self.labels[indices])

    def split(self, validation_fraction: float, seed: int) -> tuple["Images", "Images"]:
        """Training and validation images, drawn by the seed.

        Raises:
            DataError: one of the two would be empty.
        """
        order = np.random.Generator(np.random.Philox(key=[seed, 2**40])).permutation(len(self))
        cut = round(len(self) * (1 - validation_fraction))
        if not 0 < cut < len(self):
            raise DataError("images", f"{len(self)} are too few to hold some out", "give more")
        return self.select(order[:cut]), self.select(order[cut:])

    @property
    def fingerprint(self) -> str:
        """A hash of all pixels and labels."""
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()


def open_images(path: Path, num_channels: int, size: int) -> Images:
    """The images of a .npz file or of a folder's subfolders, which must be of the size that a model is for.

    Raises:
        DataError: they are of another size, or cannot be read.
    """
    images = read_image_folder(path, num_channels, size) if path.is_dir() else read_images(path)
    shape, expected = images.images.shape[1:], (num_channels, size, size)
    if shape != expected:
        actual, taken = (" x ".join(map(str, sizes)) for sizes in (shape, expected))
        raise DataError(str(path), f"its images are {actual} and the model takes {taken}", "change either")
    return images


def read_images(file: Path) -> Images:
    """The `images` and `labels` of a .npz file.

    Raises:
        DataError: names the file and what is missing or has the wrong shape or type.
    """
    images, labels = read_pictures(file), _array(file, "labels")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        cause = f"has {len(images)} images and labels of {labels.shape} {labels.dtype}"
        raise DataError(str(file), cause, "give (N,) whole numbers")
    labels = labels.astype(np.int64)
    if labels.min() < 0:
        raise DataError(str(file), "holds a class below 0", "fix the file")
    return Images(images, labels)


def class_names(folder: Path) -> tuple[str, ...]:
    """The subfolders of a folder of images, one for each class, in the order of names."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir()))


def read_image_folder(folder: Path, num_channels: int, size: int) -> Images:
    """The images in a folder's subfolders, one for each class in the order of names, cut and scaled to a square.

    Args:
        folder: holds the subfolders.
        num_channels: 1 (grey) or 3 (red, green and blue).
        size: rows and columns.

    Raises:
        DataError: names what is not an image, or says that there are none, or too many for the memory.
    """
    if num_channels not in (1, 3):
        raise DataError(str(folder), f"files of images have no {num_channels} channels", "use a model of 1 or 3")
    classes = class_names(folder)
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not files:
        cause = f"its {len(classes)} subfolders hold no image ({', '.join(IMAGE_SUFFIXES)})"
        raise DataError(str(folder), cause, "give a subfolder for each class")
    if len(files) * num_channels * size**2 * 4 > MAX_ARRAY_BYTES:
        cause = f"its {len(files):,} images take more than {MAX_ARRAY_BYTES >> 20:,} MiB"
        raise DataError(str(folder), cause, "give fewer, or a model of smaller ones")
    images = np.empty((len(files), num_channels, size, size), dtype=np.float32)
    for image, (file, _) in zip(images, files, strict=True):
        image[:] = decode_image(file, num_channels, size)
    return Images(images, np.array([label for _, label in files]))


def decode_image(file: Path | IO[bytes], num_channels: int, size: int) -> npt.NDArray[np.float32]:
    """An image, cut and scaled to a square, (C, H, W), between 0 and 1.

    Args:
        file: of any of the usual formats.
        num_channels: 1 (grey) or 3 (red, green and blue).
        size: rows and columns.

    Raises:
        DataError: it is not an image.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            square = ImageOps.fit(opened.convert("L" if num_channels == 1 else "RGB"), (size, size))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        place = str(file) if isinstance(file, Path) else "image"
        raise DataError(place, "is not an image", "fix or remove it") from None
    pixels: npt.NDArray[np.float32] = np.asarray(square, dtype=np.float32) / np.float32(255)
    return pixels.reshape(size, size, num_channels).transpose(2, 0, 1)


def image_size(file: IO[bytes]) -> tuple[int, int]:
    """Width and height of an image, as its head says them; nothing is decoded.

    Raises:
        DataError: it is not an image.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as opened:
                return opened.size
    except Image.DecompressionBombError:
        raise DataError("image", "has more pixels than any picture", "make it smaller") from None
    except (OSError, ValueError, SyntaxError):
        raise DataError("image", "is not an image", "fix or remove it") from None


def read_pictures(file: Path) -> npt.NDArray[np.float32]:
    """The `images` of a .npz file, (N, C, H, W); (N, H, W) is read as one channel.

    Raises:
        DataError: names the file and what is missing or has the wrong shape or type.
    """
    images = _array(file, "images")
    images = images[:, None] if images.ndim == 3 else images
    if images.dtype.kind not in "biuf" or images.ndim != 4 or not images.size:
        raise DataError(str(file), f"has images of {images.shape} {images.dtype}", "give (N, C, H, W) numbers")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
        images = images.astype(np.float32, copy=False)
    if not np.isfinite(images).all():
        raise DataError(str(file), "holds a number that is not finite", "fix the file")
    return images


def _array(file: Path, name: str) -> npt.NDArray[Any]:
    """One array of a .npz file, without unpickling."""
    check_regular(file)
    try:
        with zipfile.ZipFile(file) as arrays, arrays.open(f"{name}.npy") as stored:
            if arrays.getinfo(f"{name}.npy").file_size > MAX_ARRAY_BYTES:
                cause = f"{name} has more than {MAX_ARRAY_BYTES >> 20:,} MiB unpacked"
                raise DataError(str(file), cause, "give fewer or smaller images")
            array: npt.NDArray[Any] = np.lib.format.read_array(stored, allow_pickle=False)
            return array
    except FileNotFoundError:
        raise DataError(str(file), "there is no such file", "check the path") from None
    except KeyError:
        raise DataError(str(file), f"holds no array named {name}", f"save it with {name}") from None
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise DataError(str(file), "is not an .npz file of plain numbers", "write it with numpy.savez") from None


class ImageBatches:
    """Batches of images, each image once an epoch, in an order that the seed and the epoch determine."""

    def __init__(self, images: Images, batch_size: int, seed: int) -> None:
        self.images = images
        self.batch_size = min(batch_size, len(images))
        self.seed = seed
        self.per_epoch = len(images) // self.batch_size

    def batch(self, step: int) -> Images:
        """The images of a step."""
        epoch, index = divmod(step, self.per_epoch)
        order = np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(len(self.images))
        return self.images.select(order[index * self.batch_size : (index + 1) * self.batch_size])
