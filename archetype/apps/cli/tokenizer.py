"""`archetype tokenizer`: train, show and encode."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.apps.cli.options import TEXT_HELP, Column, Json, Output
from archetype.apps.cli.output import print_json
from archetype.apps.cli.verb import Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from archetype.tokenizers import Tokenizer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Train, show and use tokenizers."
)

FOLDER = typer.Argument(help="A tokenizer's folder, a run directory or a model folder.")
SHOWN = 8  # special tokens shown; Llama 3 has 256
SHOWN_MERGES = 20
NEEDS = {"column": ("text",)}


@app.command(cls=Verb)
def train(
    text: Annotated[list[Path], typer.Option(help=f"{TEXT_HELP}; may be repeated.")],
    to: Output,
    column: Column = None,
    kind: Annotated[str, typer.Option(help="Kind: bytes, characters, words, bpe or byte_bpe.")] = "byte_bpe",
    vocab_size: Annotated[int | None, typer.Option(help="Maximum vocabulary size; required for BPE.")] = None,
    growing: Annotated[
        bool, typer.Option("--growing", help="Assign new ids to unknown words (only with --kind words).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on texts."""
    from archetype.data.text_files import read_texts
    from archetype.io.atomic import new_folder

    documents = [document for file in text for document in read_texts(file, column)]
    with new_folder(to) as folder:  # refuses an existing one before the training
        tokenizer = _trained(kind, documents, vocab_size, growing)
        tokenizer.save(folder)
    # on stderr: it is a warning, and the result is on standard output
    if vocab_size is not None and tokenizer.vocab_size < vocab_size:
        print(f"{kind}: only {tokenizer.vocab_size:,} ids, because these texts have no more merges", file=sys.stderr)
    if as_json:
        print_json({"folder": str(to), "kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size})
    else:
        print(f"{to}: {tokenizer.kind}, {tokenizer.vocab_size:,} ids")


@app.command(cls=Verb)
def show(
    folder: Annotated[Path, FOLDER],
    merges: Annotated[int | None, typer.Option(min=0, help="Number of merges to print.  [default: 20]")] = None,
    text: Annotated[Path | None, typer.Option(help="File on which to count merges and bytes per token.")] = None,
    column: Column = None,
    as_json: Json = False,
) -> None:
    """Print a tokenizer's size, special tokens, first merges, and how well it compresses a text."""
    from archetype.data.text_files import read_texts
    from archetype.errors import DataError
    from archetype.tokenizers import open_tokenizer
    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

    tokenizer = open_tokenizer(folder)
    if merges is not None and not isinstance(tokenizer, HuggingFaceTokenizer):
        raise DataError("--merges", f"a tokenizer of kind {tokenizer.kind} has no merges", "remove it")
    sample = None if text is None else read_texts(text, column)
    rows = _merges(tokenizer, SHOWN_MERGES if merges is None else merges, sample)
    facts: dict[str, Any] = {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "bos": tokenizer.bos,
        "eos": list(tokenizer.eos),
        "adds_bos": tokenizer.adds_bos,
        "special_tokens": tokenizer.special_tokens,
    }
    facts |= {} if sample is None else {"text": _compression(tokenizer, sample)}
    if as_json:
        print_json(facts | {"merges": rows})
    else:
        _print_facts(facts, tokenizer.token)
        if rows:
            print()
            _print_merges(rows)


@app.command(cls=Verb)
def encode(
    folder: Annotated[Path, FOLDER],
    text: Annotated[str, typer.Argument(help="Text, or - for standard input.")],
    as_json: Json = False,
) -> None:
    """Encode a text and print its token ids."""
    from archetype.io.text import decode_text
    from archetype.tokenizers import open_tokenizer

    tokenizer = open_tokenizer(folder)
    ids = tokenizer.encode(decode_text(sys.stdin.buffer.read(), "standard input") if text == "-" else text)
    pieces = [tokenizer.token(id) for id in ids]
    if as_json:
        print_json({"ids": ids, "pieces": pieces})
    else:
        print(" ".join(map(str, ids)))
        print(" ".join(pieces))


@app.command(cls=Verb)
def decode(
    folder: Annotated[Path, FOLDER],
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="Token ids.")],
    as_json: Json = False,
) -> None:
    """Decode token ids."""
    from archetype.errors import DataError
    from archetype.tokenizers import open_tokenizer

    tokenizer = open_tokenizer(folder)
    if wrong := [id for id in ids if not 0 <= id < tokenizer.vocab_size]:
        raise DataError(f"id {wrong[0]}", "is not a token of this tokenizer", f"use 0 to {tokenizer.vocab_size - 1}")
    text = tokenizer.decode(ids)
    if as_json:
        print_json({"ids": ids, "text": text})
    else:
        print(text)


def _trained(kind: str, documents: list[str], vocab_size: int | None, growing: bool) -> "Tokenizer":
    from archetype.errors import DataError
    from archetype.tokenizers import train_tokenizer
    from archetype.tokenizers.words import WordTokenizer

    tokenizer = train_tokenizer(kind, documents, vocab_size)
    if growing:
        if not isinstance(tokenizer, WordTokenizer):
            raise DataError("--growing", f"has no effect on kind {kind}", "use it with --kind words")
        tokenizer.growing = True
    return tokenizer


def _merges(tokenizer: "Tokenizer", limit: int, documents: list[str] | None) -> list[dict[str, Any]]:
    # empty for kinds other than BPE; counts are None without a text
    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
    from archetype.tokenizers.merges import merge_counts

    if not isinstance(tokenizer, HuggingFaceTokenizer) or not limit:
        return []
    limit = min(limit, len(tokenizer.merges))
    counts = [None] * limit if documents is None else merge_counts(tokenizer, documents, limit)
    return [
        {"pair": [*map(tokenizer.readable, pair)], "token": tokenizer.readable("".join(pair)), "count": count}
        for pair, count in zip(tokenizer.merges[:limit], counts, strict=False)
    ]


def _compression(tokenizer: "Tokenizer", documents: list[str]) -> dict[str, Any]:
    # bytes in UTF-8, so that tokenizers of different scripts can be compared
    size, tokens = (sum(map(len, parts)) for parts in (map(str.encode, documents), map(tokenizer.encode, documents)))
    return {"bytes": size, "tokens": tokens, "bytes_per_token": size / tokens if tokens else None}


def _print_facts(facts: dict[str, Any], token: "Callable[[int], str]") -> None:
    special = [f"{name} {id}" for name, id in facts["special_tokens"].items()]
    listed = ", ".join(special[:SHOWN]) + (f" and {len(special) - SHOWN} more" if len(special) > SHOWN else "")
    starts = [] if facts["bos"] is None else [facts["bos"]]
    print(f"kind             {facts['kind']}")
    print(f"vocabulary       {facts['vocab_size']:,} ids")
    print(f"special tokens   {listed or 'none'}")
    print(f"starts a text    {_named(starts, token)}{' (added to prompts)' if facts['adds_bos'] else ''}")
    print(f"ends a text      {_named(facts['eos'], token)}")
    if "text" in facts:
        text = facts["text"]
        print(f"text             {text['bytes']:,} bytes, {text['tokens']:,} tokens")
        print(f"bytes per token  {text['bytes_per_token'] or 0:.3f}")


def _named(ids: list[int], token: "Callable[[int], str]") -> str:
    return ", ".join(f"{token(id)} {id}" for id in ids) or "none"


def _print_merges(rows: list[dict[str, Any]]) -> None:
    from archetype.table import Table

    cells = []
    for index, row in enumerate(rows, start=1):
        first, second = row["pair"]
        cells.append(
            [str(index), f"{first} + {second}", row["token"], "-" if row["count"] is None else f"{row['count']:,}"]
        )
    print(Table(("merge", "pair", "token", "count"), cells, text_columns=3))
