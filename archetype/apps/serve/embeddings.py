"""POST /v1/embeddings and /v1/classify: embeddings of texts, and classification of texts and images."""

import base64
import binascii
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import TypedDict

from archetype.api.image_encoder import ImageEncoder
from archetype.api.text_classifier import TextClassifier
from archetype.api.text_embedder import TextEmbedder
from archetype.apps.serve.answers import Envelope, Enveloped, Usage
from archetype.apps.serve.completions import encode
from archetype.apps.serve.errors import ApiError, blaming, invalid_value
from archetype.apps.serve.exchange import Exchange
from archetype.apps.serve.generation import check_answer
from archetype.apps.serve.limits import (
    BASE64_BYTES,
    BYTES_OF_PIXEL,
    MAX_INPUTS,
    MEMORY_OF_JSON,
    NUMBER_BYTES,
    PICTURE_PIXELS,
    PICTURES_AT_ONCE,
)
from archetype.apps.serve.requests import ClassifyRequest, EmbeddingRequest, Ids, ImagePart, as_list
from archetype.apps.serve.served_model import ServedModel
from archetype.data.picture import picture_size
from archetype.errors import ArchetypeError
from archetype.generate import Pooling
from archetype.generate.encoder import check_lengths, of_like_lengths


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ClassProbabilities(TypedDict):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(Enveloped):
    data: list[ClassProbabilities]
    usage: Usage


async def embeddings(exchange: Exchange, body: EmbeddingRequest) -> Embeddings:
    """Respond with an embedding of each text."""
    async with exchange.app.models.use(body.model) as model:
        model.check("embeddings")
        lm = model.lm.expect(TextEmbedder)
        inputs = _check_inputs(as_list(body.input))
        sequences = await model.worker.text(lambda: _tokenize(model, inputs, body.pooling))
        head, width = model.lm.spec.head, getattr(model.lm.spec, "d_model", 0)
        width = head.width(width) if head.embeds and body.pooling is None else width
        nbytes = len(sequences) * width * (BASE64_BYTES if body.encoding_format == "base64" else NUMBER_BYTES)
        check_answer(nbytes, f"{len(sequences):,} vectors of {width:,} numbers", "input")
        with model.memory.hold(MEMORY_OF_JSON * nbytes, "the answer", "input"):
            vectors = await _in_slices(
                model,
                sequences,
                lambda indices: lm.embed([sequences[n] for n in indices], body.pooling, body.normalize),
            )
    data: list[Embedding] = [
        {"object": "embedding", "index": index, "embedding": _vector(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "data": data, "model": model.name, "usage": _usage(sum(map(len, sequences)))}


async def classify(exchange: Exchange, body: ClassifyRequest) -> Classes:
    """Respond with the classes of texts or images, in vLLM's format."""
    async with exchange.app.models.use(body.model) as model:
        model.check("classes")
        inputs = [body.input] if isinstance(body.input, str) else list(body.input)
        _check_inputs(inputs)
        count = 0
        lm = model.lm
        if isinstance(lm, ImageEncoder):
            urls = [item.image_url.url if isinstance(item, ImagePart) else str(item) for item in inputs]
            answers = await _classes_of_pictures(model, urls)
        else:
            lm = lm.expect(TextClassifier)
            if not all(isinstance(one, str) for one in inputs):
                raise invalid_value("input", "this model classifies texts; send texts")
            strings = [str(text) for text in inputs]
            tokens = await model.worker.text(lambda: [_encode_text(model, text) for text in strings])
            count = sum(map(len, tokens))
            answers = await _in_slices(model, tokens, lambda indices: lm.classify([strings[n] for n in indices]))
    envelope = Envelope(model, "classify", "list")
    data = list[ClassProbabilities]()
    for index, row in enumerate(answers.tolist()):
        best = max(range(len(row)), key=row.__getitem__)
        label = model.lm.labels[best] if model.lm.labels else str(best)
        data.append({"index": index, "label": label, "probs": row, "num_classes": len(row)})
    return {**envelope.fields, "data": data, "usage": _usage(count)}


async def _in_slices(model: ServedModel, sequences: list[list[int]], work: Callable[[list[int]], Tensor]) -> Tensor:
    # in batches of similar lengths, which need little padding, with steps of the engine in between
    order, results = list[int](), list[Tensor]()
    assert isinstance(model.lm, TextEmbedder | TextClassifier)
    with blaming("input"):
        check_lengths(model.lm.model, sequences)
        for indices in of_like_lengths(list(map(len, sequences))):
            order += indices
            results.append((await model.worker.run(partial(work, indices))).float().cpu())
    return torch.cat(results)[torch.tensor(order).argsort()]  # (N, D), back in the order of the request


async def _classes_of_pictures(model: ServedModel, urls: list[str]) -> Tensor:
    # (N, num_classes); only a few images are in memory at once
    results = []
    for start in range(0, len(urls), PICTURES_AT_ONCE):
        part = urls[start : start + PICTURES_AT_ONCE]
        batch = await model.worker.text(lambda: torch.stack([picture(model, url) for url in part]))  # noqa: B023
        with blaming("input"):
            results.append(
                (await model.worker.run(partial(model.lm.expect(ImageEncoder).classify, batch))).float().cpu()
            )
    return torch.cat(results)


def _check_inputs(inputs: list[Any]) -> list[Any]:
    if len(inputs) > MAX_INPUTS:
        raise invalid_value("input", f"has {len(inputs)} items; send at most {MAX_INPUTS}")
    if not inputs or not all(isinstance(item, ImagePart) or item for item in inputs):
        raise invalid_value("input", "is empty; send some text")
    return inputs


def _tokenize(model: ServedModel, inputs: list[str | Ids], pooling: Pooling | None) -> list[list[int]]:
    checked = [encode(model, text) if isinstance(text, list) else text for text in inputs]
    with blaming("input"):
        return model.lm.expect(TextEmbedder).embedding_tokens(checked, pooling)


def _encode_text(model: ServedModel, text: str | Ids) -> list[int]:
    # a complete text has all special tokens; a prompt, which is continued, has fewer
    if isinstance(text, list):
        return encode(model, text)
    return model.tokenizer.add_special_tokens(encode(model, text, add_special_tokens=False))


def _vector(vector: Tensor, format: str | None) -> list[float] | str:
    if format == "base64":
        # little-endian float32, as OpenAI's clients decode it; the Python client asks for it by default
        return base64.b64encode(vector.contiguous().numpy().astype("<f4").tobytes()).decode()
    return vector.tolist()


def _usage(tokens: int) -> Usage:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def picture(model: ServedModel, url: str) -> Tensor:
    """Decode the image in a data: URL to the model's input, (channels, height, width).

    Raises:
        ApiError: the URL is not a data: URL, or contains no image.
    """
    head, comma, text = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        problem = "is not a data URL, and the server fetches nothing; send data:image/png;base64,..."
        raise invalid_value("input", problem)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_value("input", "the image is not base64; encode the image file as base64") from None
    try:
        # from the header: a small file may decode to gigabytes
        width, height = picture_size(data)
        if width * height > PICTURE_PIXELS:
            cause = f"an image of {width:,} x {height:,} has more than {PICTURE_PIXELS:,} pixels"
            raise invalid_value("input", f"{cause}; send a smaller image")
        with model.memory.hold(width * height * BYTES_OF_PIXEL, f"an image of {width:,} x {height:,}", "input"):
            return model.lm.expect(ImageEncoder).image(data)
    except ArchetypeError as error:  # in the image, or in the model's preprocessor_config.json
        raise ApiError("invalid_value", str(error), "input") from None
