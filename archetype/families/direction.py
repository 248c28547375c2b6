"""Decoders published with `is_causal: false`, whose attention is bidirectional. They are read as encoders."""

from typing import Any

from archetype.families.class_keys import keys_read
from archetype.families.config import Config
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import NoPosition, Rotary

KEY = "is_causal"
SHARED = tuple(name for name in Decoder.model_fields if name in Encoder.model_fields and name != "kind")


def read_direction(config: Config, model: ModelSpec) -> ModelSpec:
    """Return the model, or of a decoder an encoder with its layers if the class reads `is_causal` and it is false.

    Raises:
        CheckpointError: a layer cannot be bidirectional, the head classifies from the last token, or an encoder has
            the key.
    """
    if not isinstance(model, Decoder):
        # no class of an encoder reads it, but PyTorch's attention does, without padding
        if config.values.get(KEY) is True:
            raise config.error(KEY, "makes an encoder causal, but only in batches without padding", "remove the key")
        return model
    decoder, read = model, keys_read(config.values)
    # most classes ignore the key
    if (read is not None and KEY not in read) or config.flag(KEY, True):
        return decoder
    if (cause := _one_way(decoder)) is not None:
        raise config.error(KEY, cause, "remove the key to read it as a decoder")
    if decoder.head.classifies or decoder.further_tokens is not None:
        raise config.error(KEY, "the head needs a last token that attends to the whole text", "remove the key")
    return Encoder(**{name: getattr(decoder, name) for name in SHARED})


def as_decoder(model: ModelSpec) -> ModelSpec:
    """Return the decoder from which `read_direction` makes this encoder. Other models are returned unchanged."""
    if not isinstance(model, Encoder) or model.pooler or model.head.classifies or model.head.predicts_masked:
        return model
    if _one_way(model) is not None:
        return model
    return Decoder(**{name: getattr(model, name) for name in SHARED})


def _one_way(model: Decoder | Encoder) -> str | None:
    # the reason why a layer cannot be bidirectional; None if all can
    for index, block in enumerate(model.layers):
        mixer = block.mixer
        if not (isinstance(mixer, Attention) and isinstance(mixer.pattern, Full)):
            return f"layer {index} is not full attention, which is the only bidirectional mixer here"
        if not isinstance(mixer.position, Rotary | NoPosition):
            return f"{mixer.position.kind} positions of layer {index} are not defined for later keys"
    return None


def write_direction(model: ModelSpec) -> dict[str, Any]:
    return {KEY: False} if isinstance(model, Encoder) else {}
