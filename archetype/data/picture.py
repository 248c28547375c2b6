"""Decoding of image files to pixels, as transformers does.

Images are rotated by their EXIF orientation and converted to RGB or grayscale; the alpha channel is dropped.
"""

import io
import struct
import warnings
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from archetype.errors import DataError, ReadOtherwise

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 3: "RGB"}  # PIL mode by number of channels
DAMAGE = (OSError, ValueError, SyntaxError, TypeError, LookupError, EOFError, OverflowError, struct.error)


def decode_picture(
    data: bytes, num_channels: int, place: str = "image", on_white: bool = False
) -> npt.NDArray[np.uint8]:
    """Decode an image file to pixels, (C, H, W), 0 to 255.

    Args:
        data: contents of the file.
        num_channels: 1 (grayscale) or 3 (RGB).
        place: the file's name, for messages.
        on_white: whether to draw an image with a transparent color on white.

    Raises:
        DataError: the file is not an image or has 32-bit values, or `num_channels` is neither 1 nor 3.

    Warns:
        ReadOtherwise: the image is 16-bit grayscale, which transformers reads as white.
    """
    from PIL import Image, ImageOps

    if num_channels not in MODES:
        raise DataError(place, f"files of images have no {num_channels} channels", "use a model of 1 or 3")
    try:
        with Image.open(io.BytesIO(data)) as opened:
            picture = _with_8_bits(ImageOps.exif_transpose(opened), place)
            if isinstance(picture.info.get("transparency"), bytes):
                picture = picture.convert("RGBA")  # of a palette; avoids PIL's warning that it is lost
            picture = picture.convert("RGB" if picture.mode == "P" else MODES[num_channels])
            if on_white and picture.info.get("transparency") is not None:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            pixels = np.asarray(picture.convert(MODES[num_channels]))
    except (*DAMAGE, Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(place, "is not an image", "fix or remove it") from None
    return pixels.reshape(*pixels.shape[:2], num_channels).transpose(2, 0, 1)


def picture_size(data: bytes) -> tuple[int, int]:
    """Return width and height of an image from its header, without decoding pixels.

    Raises:
        DataError: the data are not an image.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as opened:
                return opened.size
    except Image.DecompressionBombError:
        raise DataError("image", "has more pixels than any picture", "make it smaller") from None
    except DAMAGE:
        raise DataError("image", "is not an image", "fix or remove it") from None


def _with_8_bits(picture: "Image", place: str) -> "Image":
    """Keep the higher 8 bits of 16-bit grayscale, as PIL does for 16-bit color; PIL's conversion gives white."""
    from PIL import Image

    if picture.mode in ("I", "F"):
        cause = "has numbers of 32 bits, of which nothing says which is white"
        raise DataError(place, cause, "save it with 8 bits a channel")
    if picture.mode.startswith("I;16"):
        message = "grey pictures of 16 bits are read by their higher 8, as those of colours are; PIL makes them white"
        warnings.warn(message, ReadOtherwise, stacklevel=3)
        return Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    return picture
