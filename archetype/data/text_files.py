"""Texts of files that are read into memory: plain text, or records as `train --text` reads them."""

from pathlib import Path

from archetype.data.columns import text_column
from archetype.data.sources import RECORD_SUFFIXES, Sources
from archetype.errors import DataError
from archetype.io.text import read_text


def read_texts(file: Path, column: str | None = None) -> list[str]:
    """The texts of a file: one of plain text, and one for each record of JSON, CSV, TSV or Parquet.

    Args:
        file: its name says which it is; .gz is decompressed.
        column: of records, the one that holds the text (None: `text`, or the only one with texts).

    Raises:
        DataError: the file or a record of it cannot be read, or it is not clear which column holds the text.
    """
    if not holds_records(file):
        if column is not None:
            raise DataError(f"--column {column}", f"{file} is plain text", "leave it out, or give a file of records")
        return [read_text(file)]
    if not file.is_file():
        read_text(file)  # raises the error of a file that is missing, or a folder
    sources = Sources((str(file.absolute()),), text_column(file) if column is None else column)
    texts = [text for piece in sources.pieces() for text in sources.documents(piece)]
    if not texts:
        raise DataError(str(file), "holds no text", "choose a file whose records hold texts")
    return texts


def read_joined(file: Path, column: str | None = None) -> str:
    """The texts of a file as one, those of records joined by line ends; arguments and errors as for `read_texts`."""
    return "\n".join(read_texts(file, column))


def read_lines_text(file: Path, remedy: str) -> str:
    """The text of a file that has one item on each line.

    Args:
        file: of plain text.
        remedy: what to do with a file of records.

    Raises:
        DataError: the file cannot be read, or holds records.
    """
    if holds_records(file):
        raise DataError(str(file), "is a file of records", remedy)
    return read_text(file)


def holds_records(file: Path) -> bool:
    """Whether a file holds records, by its name."""
    return file.name.endswith(RECORD_SUFFIXES)
