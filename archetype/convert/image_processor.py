"""Preprocessing of images as described in preprocessor_config.json: from pixels to model input.

Steps, order and arithmetic are the same as in transformers' image processors with the PIL backend.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, model_validator

from archetype.errors import CheckpointError, DataError, NotObeyed, SpecError
from archetype.io.yaml import read_mapping
from archetype.spec.base import Finite, Flag, Positive, Size, Spec
from archetype.spec.errors import invalid

FILE = "preprocessor_config.json"
NESTED_FILE = "processor_config.json"  # of multimodal models; its image section has precedence
BILINEAR, BICUBIC = 2, 3  # PIL's numbers of filters
MAX_PIXELS = 2**24  # of a scaled image; scaling the shorter side of a 1 x 10,000 image could exceed the memory

Pixels = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float32]


class Sides(Spec):
    """Target size for scaling or cropping.

    Attributes:
        height: height in pixels; needs `width`.
        width: width in pixels; needs `height`.
        shortest_edge: length of the shorter side in pixels, with the aspect ratio kept.
    """

    height: Size | None = None
    width: Size | None = None
    shortest_edge: Size | None = None

    @model_validator(mode="after")
    def _is_one_of_two(self) -> "Sides":
        sides = [name for name in ("height", "width", "shortest_edge") if getattr(self, name) is not None]
        if sides not in (["height", "width"], ["shortest_edge"]):
            invalid("", f"has {' and '.join(sides) or 'nothing'}", "set height and width, or shortest_edge")
        return self

    def of(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) to which an image of the given size is scaled.

        Raises:
            DataError: the scaled image has too many pixels.
        """
        new_height, new_width = self.height or 0, self.width or 0
        if self.shortest_edge is not None:
            # int() rounds down, as in transformers' get_resize_output_image_size
            longer = int(self.shortest_edge * max(height, width) / min(height, width))
            new_height, new_width = (longer, self.shortest_edge) if width <= height else (self.shortest_edge, longer)
        if new_height * new_width > MAX_PIXELS:
            cause = f"of {height} x {width} pixels would be scaled to {new_height} x {new_width}"
            raise DataError("picture", cause, f"crop it, or make the size in {FILE} smaller")
        return new_height, new_width


def _square(side: int) -> Sides:
    return Sides(height=side, width=side)


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


ByChannel = Annotated[tuple[Finite, ...], BeforeValidator(_as_list), Field(min_length=1)]


class ImageProcessor(Spec):
    """Preprocessing steps in the order of the fields, whose names are those in the file.

    Attributes:
        do_convert_rgb: repeat grayscale images to three channels.
        do_resize: scale to `size`.
        size: height and width, or the shortest edge.
        resample: filter in PIL: 0 nearest, 1 Lanczos, 2 bilinear, 3 bicubic, 4 box, 5 Hamming.
        do_center_crop: crop the center to `crop_size`, padding with black.
        crop_size: height and width.
        do_rescale: multiply pixels (0 to 255) by `rescale_factor`.
        rescale_factor: 1/255 scales to the range 0 to 1.
        do_normalize: subtract `image_mean` and divide by `image_std`.
        image_mean: one number, or one per channel.
        image_std: one number, or one per channel.
    """

    do_convert_rgb: Flag = False
    do_resize: Flag = True
    size: Sides = _square(224)
    resample: Annotated[int, Field(strict=True, ge=0, le=5)] = BILINEAR
    do_center_crop: Flag = False
    crop_size: Sides | None = None
    do_rescale: Flag = True
    rescale_factor: Positive = 1 / 255
    do_normalize: Flag = True
    image_mean: ByChannel = (0.5,)
    image_std: ByChannel = (0.5,)

    @model_validator(mode="after")
    def _can_be_done(self) -> "ImageProcessor":
        if self.do_center_crop and (self.crop_size is None or self.crop_size.height is None):
            invalid("crop_size", "has no height and width", "add both, or remove do_center_crop")
        if min(self.image_std) <= 0:
            invalid("image_std", "has a number that is not positive", "use positive numbers")
        return self

    def numbers(self, pixels: Pixels) -> Numbers:
        """Convert an image to the model's input, (C, H, W).

        Raises:
            SpecError: the mean or deviation has the wrong number of channels, or the result is infinite.
            DataError: the scaled image is too large.
        """
        if self.do_convert_rgb and len(pixels) == 1:
            pixels = pixels.repeat(3, axis=0)
        if self.do_resize:
            pixels = _resized(pixels, self.size.of(*pixels.shape[1:]), self.resample)
        if self.do_center_crop and self.crop_size is not None:
            pixels = _center_crop(pixels, *self.crop_size.of(*pixels.shape[1:]))
        with np.errstate(all="ignore"):  # overflow is refused below
            values = pixels.astype(np.float32)
            if self.do_rescale:
                # in float64, as transformers does; float32 would round differently
                values = (pixels.astype(np.float64) * self.rescale_factor).astype(np.float32)
            if self.do_normalize:
                mean, std = (self._by_channel(name, len(pixels)) for name in ("image_mean", "image_std"))
                values = (values - mean) / std
        if not np.isfinite(values).all():
            raise SpecError(FILE, "the values produce infinite or NaN pixels", "check that the file is this model's")
        return values

    def _by_channel(self, name: str, num_channels: int) -> Numbers:
        values = getattr(self, name)
        if len(values) not in (1, num_channels):
            cause = f"has {len(values)} numbers for images of {num_channels} channels"
            raise SpecError(f"{FILE}: {name}", cause, "use one number per channel")
        return np.array(values, dtype=np.float32)[:, None, None]

    def contents(self) -> dict[str, Any]:
        """Return the keys of preprocessor_config.json for a class that obeys them in every version of transformers."""
        values = self.dump(full=True)
        sides = {name: value.dump() for name in ("size", "crop_size") if (value := getattr(self, name)) is not None}
        means = {name: values[name][0] for name in ("image_mean", "image_std") if len(values[name]) == 1}
        # sides and means replace the values of the same keys, in their shortest form
        return {"image_processor_type": "CLIPImageProcessor"} | values | sides | means


def square_pictures(num_channels: int, side: int) -> ImageProcessor:
    """Return the steps for models trained on image files: scale, crop the center square, rescale to [0, 1]."""
    return ImageProcessor(
        do_convert_rgb=num_channels == 3,
        size=Sides(shortest_edge=side),
        resample=BICUBIC,
        do_center_crop=True,
        crop_size=_square(side),
        do_normalize=False,
    )


def numbers_as_they_are(num_channels: int, side: int) -> ImageProcessor:
    """Return an image processor for models trained on arrays, which leaves its input unchanged."""
    return ImageProcessor(do_resize=False, size=_square(side), do_rescale=False, do_normalize=False)


# Defaults of each class in transformers. A size of one number is the shortest edge if default_to_square is false.
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CLIP: dict[str, Any] = {
    "do_convert_rgb": True,
    "size": {"shortest_edge": 224},
    "default_to_square": False,
    "resample": BICUBIC,
    "do_center_crop": True,
    "crop_size": 224,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": {},
    "DeiTImageProcessor": {"size": 256, "resample": BICUBIC, "do_center_crop": True, "crop_size": 224},
    "BeitImageProcessor": {"resample": BICUBIC, "crop_size": 224},
    "SiglipImageProcessor": {
        "do_convert_rgb": True,
        "size": {"height": 224, "width": 224},
        "default_to_square": False,
        "resample": BICUBIC,
    },
    "CLIPImageProcessor": CLIP,
    "BitImageProcessor": CLIP,
}
OF_MODELS = {
    "vit": "ViTImageProcessor",
    "vit_msn": "ViTImageProcessor",
    "ijepa": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
}
NAMES = ("image_processor_type", "feature_extractor_type")
WITHOUT_EFFECT = {  # keys about classes, devices, labels or batches
    *NAMES, "processor_class", "_processor_class", "auto_map", "default_to_square", "pad_size", "return_tensors",
    "device", "disable_grouping", "input_data_format", "image_seq_length", "do_reduce_labels", "reduce_labels",
    "_valid_kwargs_names", "_valid_processor_keys",
}  # fmt: skip
USED_IF = {  # a key may be null if this flag is false
    "size": "do_resize",
    "resample": "do_resize",
    "crop_size": "do_center_crop",
    "rescale_factor": "do_rescale",
    "image_mean": "do_normalize",
    "image_std": "do_normalize",
}
NEUTRAL = {"do_pad": (False,), "data_format": ("channels_first",), "use_square_size": (False,), "crop_pct": ()}


def open_processor(contents: Mapping[str, Any], model_type: str | None = None) -> ImageProcessor:
    """Parse a preprocessor_config.json. Each key is used, known to have no effect, reported or refused.

    Args:
        model_type: model type that determines the class if the file does not name a class.

    Raises:
        CheckpointError: a value is wrong, or requires an unsupported step.

    Warns:
        NotObeyed: the file has unknown keys, which transformers' class ignores too.
    """
    name = str(next((contents[key] for key in NAMES if contents.get(key)), OF_MODELS.get(model_type or "", "")))
    name = name.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if name not in DEFAULTS:
        cause = f"{name!r} is not supported" if name else "is missing"
        raise CheckpointError(f"{FILE}: image_processor_type", cause, f"use one of {', '.join(DEFAULTS)}")
    for key, neutral in NEUTRAL.items():
        if contents.get(key) is not None and contents[key] not in neutral:
            cause = f"{contents[key]!r:.60} is not supported"
            raise CheckpointError(f"{FILE}: {key}", cause, "preprocess the images with transformers, as an .npz file")
    # keys that the file leaves out have the defaults of its class
    values = {**DEFAULTS[name], **contents}
    is_square = values.get("default_to_square", True)
    values = {key: value for key, value in values.items() if key in ImageProcessor.model_fields}
    for key in [key for key, value in values.items() if value is None]:
        if key.startswith("do_"):
            values[key] = False
        elif not values.get(USED_IF[key], True):
            del values[key]
    for key, square in (("size", is_square), ("crop_size", True)):
        if key in values:
            values[key] = _sides(values[key], square)
    try:
        processor = ImageProcessor.parse(values)
    except SpecError as error:
        raise CheckpointError(f"{FILE}: {error.place}", error.cause, error.remedy) from None
    if unknown := sorted(contents.keys() - ImageProcessor.model_fields.keys() - WITHOUT_EFFECT - NEUTRAL.keys()):
        message = f"{FILE}: {', '.join(map(repr, unknown))[:200]} have no effect here"
        warnings.warn(message, NotObeyed, stacklevel=2)
    return processor


def read_processor_contents(folder: Path) -> dict[str, Any] | None:
    """Return the image section of the processor file in a folder; None if there is no such section."""
    if (nested := folder / NESTED_FILE).is_file():
        contents = read_mapping(nested).get("image_processor")
        if isinstance(contents, dict):
            return contents
    file = folder / FILE
    return read_mapping(file) if file.is_file() else None


def _sides(value: Any, square: bool) -> Any:
    # older files give one number, or height and width
    if isinstance(value, int) and not isinstance(value, bool):
        return {"height": value, "width": value} if square else {"shortest_edge": value}
    if isinstance(value, list) and len(value) == 2:
        return {"height": value[0], "width": value[1]}
    return value


def _resized(pixels: Pixels, sides: tuple[int, int], resample: int) -> Pixels:
    from PIL import Image

    size, filter = sides[::-1], Image.Resampling(resample)
    # one channel at a time, for any number of channels; PIL gives the same for an RGB image
    return np.stack([np.asarray(Image.fromarray(channel).resize(size, filter)) for channel in pixels])


def _center_crop(pixels: Pixels, height: int, width: int) -> Pixels:
    # as transformers does: odd margins round down, and the padding is black
    rows, columns = (_middle(have, want) for have, want in zip(pixels.shape[1:], (height, width), strict=True))
    cut = np.zeros((len(pixels), height, width), dtype=np.uint8)
    cut[:, rows[1], columns[1]] = pixels[:, rows[0], columns[0]]
    return cut


def _middle(have: int, want: int) -> tuple[slice, slice]:
    # for one axis, the slice of the image and the slice of the result that it fills
    if want <= have:
        start = (have - want) // 2
        return slice(start, start + want), slice(0, want)
    # `have - want` is negative here, and // rounds it down
    start = -((have - want) // 2)
    return slice(0, have), slice(start, start + have)
