"""Decode image files to pixels as transformers does.

Images are rotated by their EXIF orientation and converted to RGB or grayscale. The alpha channel is dropped.
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
    """Decode an image file to pixels, (C, H, W), 0 to 255, in grayscale for 1 channel or RGB for 3 channels.

    With `on_white`, an image with a transparent color is drawn on white.

    Raises:
        DataError: the file is not an image or has 32-bit values, or `num_channels` is neither 1 nor 3.

    Warns:
        ReadOtherwise: the image is 16-bit grayscale, which transformers reads as white.
    """
    from PIL import Image, ImageOps

    if num_channels not in MODES:
        raise DataError(place, f"image files have no {num_channels} channels", "use a model with 1 or 3 channels")
    try:
        with Image.open(io.BytesIO(data)) as opened:
            picture = _with_8_bits(ImageOps.exif_transpose(opened), place)
            if isinstance(picture.info.get("transparency"), bytes):
                picture = picture.convert("RGBA")  # a palette with transparency, about which PIL would warn
            picture = picture.convert("RGB" if picture.mode == "P" else MODES[num_channels])
            if on_white and picture.info.get("transparency") is not None:
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            pixels = np.asarray(picture.convert(MODES[num_channels]))
    except (*DAMAGE, Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(place, "is not an image", "fix or remove it") from None
    return pixels.reshape(*pixels.shape[:2], num_channels).transpose(2, 0, 1)


def picture_size(data: bytes) -> tuple[int, int]:
    """Read the width and height of an image from its header, without decoding pixels."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data)) as opened:
                return opened.size
    except Image.DecompressionBombError:
        raise DataError("image", "has too many pixels", "resize the image") from None
    except DAMAGE:
        raise DataError("image", "is not an image", "fix or remove it") from None


def _with_8_bits(picture: "Image", place: str) -> "Image":
    # PIL converts 16-bit grayscale to white; keep the higher 8 bits, as PIL does for 16-bit color
    from PIL import Image

    if picture.mode in ("I", "F"):
        cause = "has 32-bit pixels, whose range is unknown"
        raise DataError(place, cause, "save it with 8 bits per channel")
    if picture.mode.startswith("I;16"):
        message = "16-bit grayscale is reduced to its higher 8 bits, as 16-bit color is; transformers reads it as white"
        warnings.warn(message, ReadOtherwise, stacklevel=3)
        return Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    return picture
