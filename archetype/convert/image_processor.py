"""preprocessor_config.json: how transformers prepares pictures for an exported model."""

from typing import Any

from archetype.models.vision.spec import VisionEncoder

FILE = "preprocessor_config.json"


def pictures_as_they_are(model: VisionEncoder) -> dict[str, Any]:
    """The contents for a model that was trained here: numbers go in as they stand, and no picture is resized."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "do_rescale": False,
        "do_normalize": False,
        "size": {"height": model.image_size, "width": model.image_size},
    }
