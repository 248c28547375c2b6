"""Pictures in files become the numbers that transformers makes of them, bit by bit, with every known class and key."""

import base64
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline
from typer.testing import CliRunner

import archetype
from archetype.apps.cli.main import app
from archetype.convert.image_processor import (
    DEFAULTS,
    FILE,
    OF_MODELS,
    numbers_as_they_are,
    open_processor,
    read_processor_contents,
    square_pictures,
)
from archetype.data.images import open_pictures, read_image_folder
from archetype.data.picture import decode_picture
from archetype.errors import ArchetypeError, CheckpointError, DataError, NotObeyed, ReadOtherwise
from archetype.training.recipe import read_recipe

SIZES = ((37, 53), (20, 11), (61, 48))
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "squashed": {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 24}},
    "fast": {"image_processor_type": "ViTImageProcessorFast", "size": 40, "resample": 3},
    "earlier": {"feature_extractor_type": "ViTFeatureExtractor", "size": 24, "image_mean": [0.1, 0.2, 0.3],
                "image_std": [0.4, 0.5, 0.6]},
    "cropped": {"image_processor_type": "DeiTImageProcessor", "size": 40, "crop_size": 33},
    "shortest edge": {"image_processor_type": "CLIPImageProcessor", "size": 32, "crop_size": 32},
    "larger than the picture": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 17},
                                "crop_size": {"height": 40, "width": 23}},
    "not resized": {"image_processor_type": "BitImageProcessor", "do_resize": False, "crop_size": 30},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 20, "width": 20}},
    "beit": {"image_processor_type": "BeitImageProcessor", "size": [20, 22], "do_reduce_labels": True},
    "null": {"image_processor_type": "ViTImageProcessor", "size": 16, "do_rescale": None,
             "crop_size": None, "rescale_factor": None, "do_pad": None, "do_convert_rgb": None},
    "pixels": {"image_processor_type": "ViTImageProcessor", "size": 16, "do_rescale": False, "do_normalize": False},
    "not rescaled": {"image_processor_type": "ViTImageProcessor", "size": 9, "do_rescale": False,
                     "image_std": [3, 2, 1]},
    "factor": {"image_processor_type": "ViTImageProcessor", "size": 16, "rescale_factor": 0.5, "do_normalize": False},
    **{f"filter {number}": {"image_processor_type": "ViTImageProcessor", "size": 16, "resample": number}
       for number in range(6)},
    **{f"{name} by itself": {"image_processor_type": name} for name in DEFAULTS},
    "trained here": square_pictures(3, 24).contents(),
    "numbers": numbers_as_they_are(3, 24).contents(),
}  # fmt: skip


def drawn(height: int, width: int, channels: int) -> Image.Image:
    random = np.random.default_rng(height)
    coarse = Image.fromarray(random.integers(256, size=(height // 3, width // 3, channels), dtype=np.uint8))
    return coarse.resize((width, height))


def pictures(folder: Path) -> Iterator[Path]:
    """Files of every mode, of turned cameras, and of several formats."""
    for height, width in SIZES:
        colours, opaque = drawn(height, width, 3), drawn(height, width, 4)
        palette = colours.quantize(17)
        named: dict[str, tuple[Image.Image, dict[str, Any]]] = {
            "colours.png": (colours, {}), "colours.jpg": (colours, {}), "colours.webp": (colours, {}),
            "colours.bmp": (colours, {}), "grey.png": (colours.convert("L"), {}),
            "bits.png": (colours.convert("1"), {}), "opacity.png": (opaque, {}),
            "grey opacity.png": (opaque.convert("LA"), {}), "palette.png": (palette, {}),
            "palette.gif": (palette, {}), "one transparent.png": (palette, {"transparency": 3}),
            "palette opacity.png": (palette, {"transparency": bytes([0, 128, 255] * 5)}),
            "one colour.png": (colours, {"transparency": colours.getpixel((3, 4))}),
            "cmyk.jpg": (colours.convert("CMYK"), {}), "luma.tif": (colours.convert("YCbCr"), {}),
            **{f"turned {turn}.jpg": (colours, {"exif": _turned(turn)}) for turn in range(1, 9)},
        }  # fmt: skip
        for name, (picture, options) in named.items():
            picture.save(folder / f"{height}x{width} {name}", **options)
            yield folder / f"{height}x{width} {name}"


def _turned(turn: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


def theirs(folder: Path, contents: dict[str, Any], file: Path) -> Any:
    (folder / FILE).write_text(json.dumps(contents))
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of PIL: transparency in bytes is lost
        text = base64.b64encode(file.read_bytes()).decode()  # as a path, but that a file would stay open
        return np.asarray(processor(text, return_tensors="np")["pixel_values"][0], dtype=np.float32)


@pytest.mark.parametrize("nth", [6, pytest.param(1, marks=pytest.mark.slow)], ids=["share", "all"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_picture_becomes_the_numbers_of_transformers(name: str, nth: int, tmp_path: Path) -> None:
    """In every run each processor reads a third of the files, and those that bring their own numbers a seventh."""
    contents = CONFIGURATIONS[name]
    processor = open_processor(contents)
    files = [*pictures(tmp_path)][:: 7 if "itself" in name else nth]
    for file in files:
        pixels = decode_picture(file.read_bytes(), 3, on_white=processor.do_convert_rgb)
        assert np.array_equal(processor.numbers(pixels), theirs(tmp_path, contents, file)), file.name
    turned = processor.numbers(pixels[:, ::-1].copy())
    assert not np.array_equal(turned, theirs(tmp_path, contents, file)), "a control"


def test_grey_models_get_grey_as_transformers_does(tmp_path: Path) -> None:
    contents = square_pictures(1, 9).contents()
    drawn(30, 21, 3).convert("L").save(tmp_path / "grey.png")
    (tmp_path / FILE).write_text(json.dumps(contents))
    opened = Image.open(tmp_path / "grey.png")
    expected = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(opened, return_tensors="np")["pixel_values"]
    assert np.array_equal(open_pictures(tmp_path / "grey.png", 1, 9, open_processor(contents)), expected)


def test_published_configurations_are_read_as_transformers_reads_them(tmp_path: Path, shared: Path) -> None:
    folder = shared / "published" / "configs"
    drawn(300, 260, 3).save(tmp_path / "a.png")
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    for file in sorted(folder.glob("*.preprocessor_config.json")):
        contents = json.loads(file.read_text())
        if file.name.startswith(("google__vit", "alibaba__Logics")):
            numbers = open_pictures(tmp_path / "a.png", 3, 224, open_processor(contents, "vit"))
            assert np.array_equal(numbers[0], theirs(tmp_path, contents, tmp_path / "a.png")), file.name
        else:
            with pytest.raises(CheckpointError, match=r"image_processor_type: .*; use one of"):
                open_processor(contents)


def test_the_classes_of_models_are_those_of_transformers() -> None:
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    assert {name: IMAGE_PROCESSOR_MAPPING_NAMES[name]["torchvision"] for name in OF_MODELS} == OF_MODELS


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"image_processor_type": "SwinImageProcessor2"}, "'SwinImageProcessor2' is not supported"),
        ({}, "image_processor_type: is missing"),
        ({"do_pad": True}, "do_pad: True is not supported"),
        ({"data_format": "channels_last"}, "data_format: 'channels_last' is not supported"),
        ({"size": {"longest_edge": 9}}, "size.longest_edge: is not a known key"),
        ({"size": {"height": 9}}, "size: has height; set height and width, or shortest_edge"),
        ({"size": "9"}, "size: '9' is not a mapping"),
        ({"do_resize": "false"}, "do_resize: 'false' is neither true nor false"),
        ({"do_center_crop": True}, "crop_size: has no height and width"),
        ({"resample": 9}, "resample: 9 is too large; use at most 5"),
        ({"image_std": [1, 0, 1]}, "image_std: has a number that is not positive"),
        ({"image_mean": [1, "0"]}, "image_mean"),
        ({"image_mean": None}, "image_mean: "),
    ],
)
def test_what_cannot_be_done_is_refused(contents: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_processor({"image_processor_type": "ViTImageProcessor"} | contents if contents else contents)
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_keys_that_are_not_known_are_named() -> None:
    with pytest.warns(NotObeyed, match="'sharpen' have no effect here"):
        open_processor({"image_processor_type": "ViTImageProcessor", "sharpen": True})
    processor = open_processor({"image_processor_type": "ViTImageProcessor", "image_mean": [0.1, 0.2, 0.3]})
    with pytest.raises(ArchetypeError, match="image_mean: has 3 numbers for images of 1 channels"):
        processor.numbers(np.zeros((1, 4, 4), np.uint8))


def test_what_a_processor_of_several_inputs_says_of_pictures_takes_precedence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"size": 1}')
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"size": 2}}')
    assert read_processor_contents(tmp_path) == {"size": 2}


def test_grey_of_16_bits_is_grey_and_of_32_is_refused(tmp_path: Path) -> None:
    """PIL's own conversion makes all but the darkest 1/256 white."""
    grey = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    for channels in (1, 3):
        with pytest.warns(ReadOtherwise, match="16-bit"):
            pixels = decode_picture((tmp_path / "grey.png").read_bytes(), channels)
        assert np.array_equal(pixels, np.broadcast_to(grey >> 8, (channels, 8, 8)))
    Image.fromarray(grey.astype(np.int32)).save(tmp_path / "grey.tif")
    with pytest.raises(DataError, match=r"grey.tif: has 32-bit pixels, whose range is unknown"):
        decode_picture((tmp_path / "grey.tif").read_bytes(), 3, "grey.tif")


def test_a_pipe_among_pictures_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "1.png")
    with pytest.raises(DataError, match=r"1.png: is not a regular file"):
        read_image_folder(tmp_path, 3, 8, square_pictures(3, 8))


def command(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else None


def test_a_run_on_files_says_the_same_in_transformers_and_in_every_verb(tmp_path: Path) -> None:
    """The names of the classes and the preparation go through training, export, import and training further."""
    random, files = np.random.default_rng(0), []
    for name, level in (("a b", 60), ("b", 190)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            pixels = (level + random.integers(-60, 60, (20 + number, 31, 3))).clip(0, 255).astype(np.uint8)
            files.append(tmp_path / "pictures" / name / f"{number}.png")
            Image.fromarray(pixels).save(files[-1])
    data = ("--images", tmp_path / "pictures", "--batch-size", 4, "--warmup-steps", 1)
    own = (
        "--set",
        "data.image_processor={image_mean: [0.5, 0.4, 0.3], size: {height: 8, width: 8}}",
    )
    runs = {"own": own, "declared": ()}
    for name, options in runs.items():
        command("train", "--spec", "vit-tiny", "--set", "spec.num_channels=3", *data, *options, "--steps", 4,
                "--to", tmp_path / name)  # fmt: skip
        hf = tmp_path / f"{name} hf"
        command("export", tmp_path / name, "--to", hf)
        command("import", hf, "--to", tmp_path / f"{name} again")
        expected = pipeline("image-classification", model=str(hf), device="cpu")(list(map(str, files)))
        assert AutoModelForImageClassification.from_pretrained(hf).config.id2label == {0: "a b", 1: "b"}
        scores = [[{one["label"]: one["score"] for one in each}[label] for label in ("a b", "b")] for each in expected]
        for folder in (tmp_path / name, hf, tmp_path / f"{name} again"):
            images = command("classify", folder, *files, "--json")["images"]
            assert np.allclose([row["probabilities"] for row in images], scores, atol=1e-6)
            assert [row["class"] for row in images] == [each[0]["label"] for each in expected]
            report = command("evaluate", folder, "--images", tmp_path / "pictures", "--json")
            right = [each[0]["label"] == file.parent.name for each, file in zip(expected, files, strict=True)]
            assert report["accuracy"] == pytest.approx(np.mean(right))
            lm = archetype.load(folder)
            bytes_ = lm.image(files[0].read_bytes())
            assert torch.equal(lm.images(files[0])[0], bytes_)
            assert command("inspect", folder, files[0], "--json")
        pixels = np.stack([np.asarray(Image.open(files[0]).convert("RGB")).transpose(2, 0, 1)])
        np.savez(tmp_path / "pixels.npz", images=pixels)  # bytes are pixels, of any size
        assert torch.equal(lm.images(tmp_path / "pixels.npz")[0], bytes_)
        np.savez(tmp_path / "numbers.npz", images=bytes_[None].numpy())  # and all else are numbers
        assert torch.equal(lm.images(tmp_path / "numbers.npz")[0], bytes_)
    command("train", "--from", tmp_path / "own hf", *data, "--steps", 1, "--to", tmp_path / "further")
    assert archetype.load(tmp_path / "further").image_processor == archetype.load(tmp_path / "own").image_processor
    processors = [read_recipe(tmp_path / name / "recipe.yaml").data.image_processor for name in ("own", "further")]  # type: ignore[attr-defined]
    assert [one.replace(crop_size=None).image_mean for one in processors] == [(0.5, 0.4, 0.3)] * 2


def test_files_are_refused_where_nothing_says_how_they_become_numbers(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    spec = archetype.load_spec("vit-tiny")
    lm = archetype.LanguageModel(spec, archetype.build(spec))
    with pytest.raises(DataError, match=r"a.png: the model has no image processor"):
        lm.images(tmp_path / "a.png")
    np.savez(tmp_path / "numbers.npz", images=np.zeros((30, 8, 8)), labels=np.arange(30) % 10)
    lm.image_processor = {"image_processor_type": "EfficientNetImageProcessor"}
    with pytest.raises(CheckpointError, match="'EfficientNetImageProcessor' is not supported"):
        lm.images(tmp_path / "a.png")
    assert lm.images(tmp_path / "numbers.npz").shape == (30, 1, 8, 8)  # which that class may have made
    assert lm.evaluate(tmp_path / "numbers.npz")
    with pytest.raises(ArchetypeError, match=r"data.image_processor: numbers.npz contains model inputs, not pixels"):
        command("train", "--spec", "vit-tiny", "--images", tmp_path / "numbers.npz", "--steps", 1, "--to",
                tmp_path / "run", "--set", "data.image_processor={do_resize: false}")  # fmt: skip
