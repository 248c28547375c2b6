"""POST /v1/embeddings and /v1/classify: vectors of texts, and classes of texts and images."""

import base64
import binascii
from typing import Any

import torch
from torch import Tensor

from archetype.apps.serve.answers import Envelope
from archetype.apps.serve.completions import encode
from archetype.apps.serve.errors import ApiError, api_error
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.models import Models
from archetype.apps.serve.requests import ClassifyRequest, EmbeddingRequest, Ids, ImagePart, as_list
from archetype.apps.serve.served_model import ServedModel
from archetype.errors import ArchetypeError
from archetype.generate import Pooling

MAX_INPUTS = 2048  # of one request


async def embeddings(models: Models, exchange: Exchange) -> None:
    """Answer with a vector for each text."""
    body = exchange.read(EmbeddingRequest)
    async with models.use(body.model) as model:
        model.check("embeddings")
        inputs = _check_inputs(as_list(body.input))
        rows = await model.worker.text(lambda: _rows(model, inputs, body.pooling))
        try:
            vectors = await model.worker.run(lambda: model.lm.embed(rows, body.pooling, body.normalize).float().cpu())
        except Exception as error:
            raise api_error(error, "input") from None
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    numbers = _usage(sum(map(len, rows)))
    await exchange.answer({"object": "list", "data": data, "model": model.name, "usage": numbers})


async def classify(models: Models, exchange: Exchange) -> None:
    """Answer with the classes of texts or images, as vLLM does."""
    body = exchange.read(ClassifyRequest)
    async with models.use(body.model) as model:
        model.check("classes")
        inputs = [body.input] if isinstance(body.input, str) else list(body.input)
        _check_inputs(inputs)
        count = 0
        if model.lm.spec.reads_images:
            urls = [one.image_url.url if isinstance(one, ImagePart) else str(one) for one in inputs]
            batch: Tensor | list[str] = await model.worker.text(
                lambda: torch.stack([picture(model, url) for url in urls])
            )
        else:
            if not all(isinstance(one, str) for one in inputs):
                raise ApiError("invalid_value", "input: this model classifies texts; send texts", "input")
            batch = texts = [str(one) for one in inputs]
            count = sum(map(len, await model.worker.text(lambda: [_encode_text(model, text) for text in texts])))
        try:
            rows = (await model.worker.run(lambda: model.lm.classify(batch).float().cpu())).tolist()
        except Exception as error:
            raise api_error(error, "input") from None
    envelope = Envelope(model, "classify", "list")
    data = []
    for index, row in enumerate(rows):
        best = max(range(len(row)), key=row.__getitem__)
        label = model.lm.labels[best] if model.lm.labels else str(best)
        data.append({"index": index, "label": label, "probs": row, "num_classes": len(row)})
    await exchange.answer(envelope.fields | {"data": data, "usage": _usage(count)})


def _check_inputs(inputs: list[Any]) -> list[Any]:
    if len(inputs) > MAX_INPUTS:
        raise ApiError("invalid_value", f"input: {len(inputs)} are too many; send at most {MAX_INPUTS}", "input")
    if not inputs or not all(isinstance(one, ImagePart) or one for one in inputs):
        raise ApiError("invalid_value", "input: is empty; give some text", "input")
    return inputs


def _rows(model: ServedModel, texts: list[str | Ids], pooling: Pooling | None) -> list[list[int]]:
    """The ids of texts as `LanguageModel.embed` reads them."""
    checked = [encode(model, text) if isinstance(text, list) else text for text in texts]
    try:
        return model.lm.embedding_tokens(checked, pooling)
    except Exception as error:
        raise api_error(error, "input") from None


def _encode_text(model: ServedModel, text: str | Ids) -> list[int]:
    """The ids of a text that ends, with all special tokens around it; a prompt, which goes on, has fewer."""
    if isinstance(text, list):
        return encode(model, text)
    return model.tokenizer.add_special_tokens(encode(model, text, add_special_tokens=False))


def _vector(vector: Tensor, format: str | None) -> list[float] | str:
    if format == "base64":
        return base64.b64encode(vector.contiguous().numpy().astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values


def _usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def picture(model: ServedModel, url: str) -> Tensor:
    """The image of a data: URL as the model reads it, (channels, height, width).

    Raises:
        ApiError: it is no such URL, or holds no image.
    """
    head, comma, text = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        message = "input: an image is sent as data:image/png;base64,...; nothing is fetched from elsewhere"
        raise ApiError("invalid_value", message, "input")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("invalid_value", "input: the image is not base64; encode its file", "input") from None
    try:
        return model.lm.image(data)
    except ArchetypeError as error:  # of the picture, or of how the model says that it is prepared
        raise ApiError("invalid_value", str(error), "input") from None
