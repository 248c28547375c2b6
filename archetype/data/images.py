"""Pictures and their classes, from a .npz file."""

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from archetype.errors import DataError


@dataclass(frozen=True)
class Images:
    """Pictures, (N, C, H, W) in float32, and the class of each, (N,)."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, places: npt.NDArray[np.int64]) -> "Images":
        """Some of them."""
        return Images(self.images[places], self.labels[places])

    def split(self, held_out: float, seed: int) -> tuple["Images", "Images"]:
        """Those to learn from, and a share that is held out, drawn by the seed."""
        order = np.random.Generator(np.random.Philox(key=[seed, 2**40])).permutation(len(self))
        cut = round(len(self) * (1 - held_out))
        if not 0 < cut < len(self):
            raise DataError("images", f"{len(self)} are too few to hold some out", "give more")
        return self.at(order[:cut]), self.at(order[cut:])

    @property
    def fingerprint(self) -> str:
        """Of all numbers."""
        return hashlib.sha256(self.images.tobytes() + self.labels.tobytes()).hexdigest()


def read_images(file: Path) -> Images:
    """The pictures in a .npz file and the `labels` beside them, (N,).

    Raises:
        DataError: names the file and what is missing or does not fit.
    """
    images, labels = read_pictures(file), _array(file, "labels")
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        cause = f"has {len(images)} images and labels of {labels.shape} {labels.dtype}"
        raise DataError(str(file), cause, "give (N,) whole numbers")
    labels = labels.astype(np.int64)
    if labels.min() < 0:
        raise DataError(str(file), "holds a class below 0", "mend it")
    return Images(images, labels)


def read_pictures(file: Path) -> npt.NDArray[np.float32]:
    """The `images` of a .npz file, (N, C, H, W); where it has (N, H, W), of one channel.

    Raises:
        DataError: names the file and what is missing or does not fit.
    """
    images = _array(file, "images")
    images = images[:, None] if images.ndim == 3 else images
    if images.dtype.kind not in "biuf" or images.ndim != 4 or not images.size:
        raise DataError(str(file), f"has images of {images.shape} {images.dtype}", "give (N, C, H, W) numbers")
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused
        images = images.astype(np.float32)
    if not np.isfinite(images).all():
        raise DataError(str(file), "holds a number that is not finite", "mend it")
    return images


def _array(file: Path, name: str) -> npt.NDArray[Any]:
    """One array of a .npz file; nothing in it is ever executed."""
    try:
        with zipfile.ZipFile(file) as arrays, arrays.open(f"{name}.npy") as stored:
            found: npt.NDArray[Any] = np.lib.format.read_array(stored, allow_pickle=False)
            return found
    except FileNotFoundError:
        raise DataError(str(file), "there is no such file", "check the path") from None
    except KeyError:
        raise DataError(str(file), f"holds no array named {name}", f"save it with {name}") from None
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error):
        raise DataError(str(file), "is not an .npz file of plain numbers", "write it with numpy.savez") from None


class ImageBatches:
    """Batches of pictures, each once an epoch, in an order drawn anew for every epoch from the seed."""

    def __init__(self, images: Images, batch_size: int, seed: int) -> None:
        self.images = images
        self.batch_size = min(batch_size, len(images))
        self.seed = seed
        self.per_epoch = len(images) // self.batch_size

    def batch(self, step: int) -> Images:
        """The pictures of a step."""
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(len(self.images))
        return self.images.at(order[place * self.batch_size : (place + 1) * self.batch_size])
