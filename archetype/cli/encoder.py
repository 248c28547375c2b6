"""The verbs of encoders: guess hidden tokens, turn texts into vectors, and name classes of texts or pictures."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from archetype.cli.output import console, print_json

MODEL = typer.Argument(metavar="MODEL", help="A run directory or a Hugging Face folder of an encoder.")
GIVEN = typer.Argument(metavar="TEXT... | IMAGES", help="Texts, or a .npz file with `images`, (N, [C,] H, W).")
DEVICE = typer.Option(help="cpu or cuda.")
DTYPE = typer.Option(help="Type to compute in.  [default: as stored]")


def fill(
    model: Annotated[Path, MODEL],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="With [MASK] for each token that is to be guessed.")],
    top: Annotated[int, typer.Option(min=1, help="Guesses for each.")] = 5,
    dtype: Annotated[str | None, DTYPE] = None,
    device: Annotated[str, DEVICE] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prediction the hidden tokens of a text."""
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    found = load(model, dtype_of(dtype), device).fill(text, top)
    if as_json:
        print_json({"text": text, "masks": [[vars(guess) for guess in guesses] for guesses in found]})
        return
    out = console()
    for number, guesses in enumerate(found):
        line = "  ".join(f"{guess.token} {guess.probability:.1%}" for guess in guesses)
        out.print(f"{number + 1}: {line}", markup=False, soft_wrap=True)


def embed(
    model: Annotated[Path, MODEL],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="One or several.")],
    pooling: Annotated[Literal["mean", "first"], typer.Option(help="Of all tokens, or the first.")] = "mean",
    raw: Annotated[bool, typer.Option("--raw", help="Do not scale vectors to length 1.")] = False,
    dtype: Annotated[str | None, DTYPE] = None,
    device: Annotated[str, DEVICE] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the vectors.")] = False,
) -> None:
    """Turn texts into vectors; without --json, print how alike each two are."""
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    vectors = load(model, dtype_of(dtype), device).embed(texts, pooling, normalized=not raw)
    if as_json:
        rows = zip(texts, vectors.tolist(), strict=True)
        print_json({"vectors": [{"text": text, "vector": vector} for text, vector in rows]})
        return
    from rich.table import Table

    table = Table("", *(f"{n + 1}" for n in range(len(texts))), box=None, pad_edge=False)
    alike = vectors @ vectors.T
    for number, (text, row) in enumerate(zip(texts, alike.tolist(), strict=True)):
        table.add_row(f"{number + 1} {text}", *(f"{value:.3f}" for value in row))
    console().print(table, markup=False)


def classify(
    model: Annotated[Path, MODEL],
    given: Annotated[list[str], GIVEN],
    dtype: Annotated[str | None, DTYPE] = None,
    device: Annotated[str, DEVICE] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all probabilities.")] = False,
) -> None:
    """Name the class of each text or picture, a line each, with its probability."""
    import torch

    from archetype.data.images import read_pictures
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    pictures = given[0].endswith(".npz") and len(given) == 1
    what = torch.from_numpy(read_pictures(Path(given[0]))) if pictures else given
    lm = load(model, dtype_of(dtype), device)
    shares = lm.classify(what)
    best = shares.max(-1)
    names = [lm.labels[label] if lm.labels else label for label in best.indices.tolist()]
    if as_json:
        rows = [{"class": name, "probabilities": row} for name, row in zip(names, shares.tolist(), strict=True)]
        print_json({"images" if pictures else "texts": rows})
        return
    for name, share in zip(names, best.values.tolist(), strict=True):
        print(f"{name} {share:.1%}")
