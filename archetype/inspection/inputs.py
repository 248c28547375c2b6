"""Conversion of a text, a source with target, or an image to the arguments of a model's forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archetype.data.pairs import end_of_text
from archetype.errors import DataError
from archetype.generate.beam import beam_search
from archetype.generate.encoder import target_of_classes
from archetype.models.build import Model
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.vision.module import VisionEncoder
from archetype.settings.generation import Beam
from archetype.tokenizers import Tokenizer

Text = str | Sequence[int] | Tensor


@dataclass(frozen=True)
class Inputs:
    """Inputs of a model's forward pass.

    Attributes:
        arguments: arguments of the forward pass, by name.
        tokens: tokens at the positions of the main stack, for display.
        source_tokens: tokens of an encoder-decoder's source, for display.
        ids: (B, T) token ids; None for images.
    """

    arguments: dict[str, Tensor]
    tokens: tuple[str, ...]
    source_tokens: tuple[str, ...] = ()
    ids: Tensor | None = None


def inputs_of(
    model: Model, tokenizer: Tokenizer | None, text: Text, target: Text | None = None, start: int | None = None
) -> Inputs:
    """Return the inputs for a text, encoded as in generation, translation and classification.

    Args:
        tokenizer: the model's tokenizer. Without a tokenizer, texts must be token ids.
        text: a text, token ids, rows of ids (B, T), or an image (C, H, W) for a vision encoder.
        target: target text of an encoder-decoder (default: greedy generation, or the source if it classifies).
        start: token at the start of targets (default: the end token).

    Raises:
        DataError: the text is empty, longer than the context, or cannot be encoded.
    """
    if isinstance(model, VisionEncoder):
        return _image(model, text)
    if target is not None and not model.spec.reads_source:
        raise DataError("target", "applies to encoder-decoders only", "remove it")
    ids = _ids(model, tokenizer, text, "text")
    if not isinstance(model, EncoderDecoder):
        return Inputs({"tokens": ids}, _names(tokenizer, ids), ids=ids)
    if isinstance(target, Tensor):  # includes its start token
        return _pair(tokenizer, ids, _ids(model, tokenizer, target, "target"))
    if start is None:
        start = end_of_text(_needed(tokenizer))
    if target is None and not model.spec.writes_target:
        answer = target_of_classes(ids, start)
    elif target is None:
        settings = Beam(num_beams=1)
        written = beam_search(model, ids.tolist(), start, end_of_text(_needed(tokenizer)), settings)[0]
        answer = torch.tensor([[start, *written]], device=model.device)
    else:
        encoded = _needed(tokenizer).encode_target(target) if isinstance(target, str) else list(target)
        answer = _ids(model, tokenizer, [start, *encoded], "target")
    return _pair(tokenizer, ids, answer)


def _pair(tokenizer: Tokenizer | None, source: Tensor, target: Tensor) -> Inputs:
    names, source_names = (_names(tokenizer, ids) for ids in (target, source))
    return Inputs({"target": target, "source": source}, names, source_names, target)


def _ids(model: Model, tokenizer: Tokenizer | None, text: Text, field: str) -> Tensor:
    if isinstance(text, str):
        tokenizer = _needed(tokenizer)
        # sources end with the end token, as in translation
        if model.spec.reads_source and not isinstance(model, Encoder):
            text = [*tokenizer.encode(text), end_of_text(tokenizer)]
        else:
            text = tokenizer.encode_prompt(text)
    ids = torch.as_tensor(text, dtype=torch.long, device=model.device)
    ids = ids[None] if ids.dim() == 1 else ids
    if ids.dim() != 2 or not 0 < ids.shape[1] <= model.spec.context_length:
        count = ids.shape[-1] if ids.dim() else 0
        cause = f"has {count} tokens, but the model accepts 1 to {model.spec.context_length}"
        raise DataError(field, cause, "use a text of that length")
    assert not isinstance(model, VisionEncoder)
    size = model.spec.input_vocab_size if field == "text" else model.spec.vocab_size
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        raise DataError(field, f"has an id outside 0 to {size - 1}", "use the model's tokenizer")
    return ids


def _image(model: VisionEncoder, image: Text) -> Inputs:
    if not isinstance(image, Tensor):
        raise DataError("text", "a vision encoder reads images", "pass a tensor (channels, height, width)")
    images = (image[None] if image.dim() == 3 else image).to(model.device)
    patches_per_side = model.spec.image_size // model.spec.patch_size
    patches = [f"{row},{column}" for row in range(patches_per_side) for column in range(patches_per_side)]
    return Inputs({"images": images}, (*(name.removesuffix("_token") for name in model.spec.learned_tokens), *patches))


def _names(tokenizer: Tokenizer | None, ids: Tensor) -> tuple[str, ...]:
    return tuple(token_name(tokenizer, id) for id in ids[0].tolist())


def token_name(tokenizer: Tokenizer | None, id: int) -> str:
    """Return a token for display: its text, or its id if the tokenizer does not know the id."""
    return str(id) if tokenizer is None or id >= tokenizer.vocab_size else tokenizer.token(id)


def _needed(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise DataError("tokenizer", "the model's folder has no tokenizer", "pass token ids instead of text")
    return tokenizer
