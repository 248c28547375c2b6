"""preprocessor_config.json: how transformers prepares pictures for an exported model."""

from typing import Any

from archetype.models.spec import ModelSpec

FILE = "preprocessor_config.json"


def pictures_as_they_are(model: ModelSpec) -> dict[str, Any]:
    """The contents for a model of images that was trained here: numbers go in as they stand, and none is resized."""
    assert model.image_shape is not None
    _, side = model.image_shape
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "do_rescale": False,
        "do_normalize": False,
        "size": {"height": side, "width": side},
    }
