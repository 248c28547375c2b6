"""Commands for encoders: predict masked tokens, embed texts, classify texts or images, and answer questions."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from archetype.apps.cli.options import Device, Dtype, Json, Model
from archetype.apps.cli.output import print_device, print_json, show_warnings

if TYPE_CHECKING:
    from archetype.api.text_encoder import TextEncoder

INPUTS = typer.Argument(
    metavar="TEXT... | IMAGE...",
    help="Texts, image files, or .npz files with an array `images` of shape (N, [C,] H, W).",
)


def fill(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text with [MASK] for each token to predict.")],
    top: Annotated[int, typer.Option(min=1, help="Number of predictions per mask.")] = 5,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict the masked tokens of a text."""
    from archetype.api.text_encoder import TextEncoder

    lm = TextEncoder.load(model, dtype=dtype, device=device)
    masks = lm.fill(text, top)
    if as_json:
        print_json({"text": text, "masks": [[vars(prediction) for prediction in mask] for mask in masks]})
        return
    print_device(lm.model.device)
    for index, mask in enumerate(masks, start=1):
        predictions = (f"{prediction.token} {prediction.probability:.1%}" for prediction in mask)
        print(f"{index}: {'  '.join(predictions)}")


def embed(
    model: Model,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="One or more texts.")],
    pooling: Annotated[
        Literal["mean", "max", "first", "last"] | None,
        typer.Option(
            help="Pooling of the token vectors.  [default: that of modules.json, otherwise mean, or last for a decoder]"
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the model's prompt to put before each text, such as query.  "
            "[default: the model's default prompt]",
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Do not normalize the vectors.")] = False,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Embed texts; without --json, print their cosine similarities."""
    from archetype.api.text_embedder import TextEmbedder

    lm = TextEmbedder.load(model, dtype=dtype, device=device)
    vectors = lm.embed(texts, pooling, normalized=False if raw else None, prompt=prompt)
    if as_json:
        rows = zip(texts, vectors.tolist(), strict=True)
        print_json({"vectors": [{"text": text, "vector": vector} for text, vector in rows]})
        return
    from archetype.table import Table

    print_device(lm.model.device)
    numbered = [f"{number} {text}" for number, text in enumerate(texts, start=1)]
    # (N, N); cosines, unless --raw has left the vectors of any length
    similarities = (vectors @ vectors.T).tolist()
    table = [[text, *(f"{value:.3f}" for value in row)] for text, row in zip(numbered, similarities, strict=True)]
    print(Table(("", *(str(number) for number in range(1, len(texts) + 1))), table))


def classify(
    model: Model,
    inputs: Annotated[list[str], INPUTS],
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Classify texts, tokens or images, with probabilities."""
    show_warnings()
    from archetype.api.functions import load
    from archetype.api.image_encoder import ImageEncoder
    from archetype.api.text_classifier import TextClassifier
    from archetype.api.text_encoder import TextEncoder

    lm = load(model, dtype, device)
    # a text model refuses an .npz file by its kind, rather than reading its name as a text
    is_images = lm.spec.reads_images or (inputs[0].endswith(".npz") and len(inputs) == 1)
    if is_images:
        encoder = lm.expect(ImageEncoder)
        probabilities = encoder.classify(encoder.images(*inputs))
    elif lm.spec.head.labels_tokens:
        _print_token_classes(lm.expect(TextEncoder), inputs, as_json)
        return
    else:
        probabilities = lm.expect(TextClassifier).classify(inputs)
    best, is_value = probabilities.max(-1), probabilities.shape[1] == 1  # (N, classes); one output is a value
    names = [lm.labels[label] if lm.labels else label for label in best.indices.tolist()]
    if as_json:
        if is_value:
            print_json({"images" if is_images else "texts": [{"value": value} for value in best.values.tolist()]})
            return
        results = [
            {"class": name, "probabilities": row} for name, row in zip(names, probabilities.tolist(), strict=True)
        ]
        print_json({"images" if is_images else "texts": results})
        return
    print_device(lm.model.device)
    for name, probability in zip(names, best.values.tolist(), strict=True):
        print(f"{probability:g}" if is_value else f"{name} {probability:.1%}")


def answer(
    model: Model,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text that contains the answer.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of the answer.")] = 15,
    dtype: Dtype = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question with a span of a text and its probability."""
    from archetype.api.text_encoder import TextEncoder

    lm = TextEncoder.load(model, dtype=dtype, device=device)
    span = lm.answer(question, text, max_tokens)
    if as_json:
        print_json({"question": question, "answer": span._asdict()})
        return
    print_device(lm.model.device)
    print(f"{span.text} {span.probability:.1%}")


def _print_token_classes(lm: "TextEncoder", texts: list[str], as_json: bool) -> None:
    answers = lm.classify_tokens(texts)
    if as_json:
        results = zip(texts, answers, strict=True)
        print_json(
            {"texts": [{"text": text, "tokens": [token._asdict() for token in classes]} for text, classes in results]}
        )
        return
    print_device(lm.model.device)
    for index, classes in enumerate(answers):
        # a line for each token, and an empty one between texts
        print("\n" * (index > 0) + "\n".join(f"{row.token} {row.label} {row.probability:.1%}" for row in classes))
