"""Read text files or record files into memory, as `train --text` does."""

from pathlib import Path

from archetype.data.columns import text_column
from archetype.data.sources import RECORD_SUFFIXES, Sources
from archetype.errors import DataError
from archetype.io.text import read_text


def read_texts(file: Path, column: str | None = None) -> list[str]:
    """Read a plain text file as one text, or a JSON, CSV, TSV or Parquet file as one text per record.

    Raises:
        DataError: the file or a record cannot be read, or `column` is missing and several columns may contain the text.
    """
    if not holds_records(file):
        if column is not None:
            raise DataError(f"--column {column}", f"{file} is plain text", "remove it, or use a file of records")
        return [read_text(file)]
    if not file.is_file():
        read_text(file)  # raises the error for a missing file or a folder
    sources = Sources((str(file.absolute()),), text_column(file) if column is None else column)
    documents = [text for piece in sources.pieces() for text in sources.documents(piece)]
    if not documents:
        raise DataError(str(file), "contains no text", "choose a file whose records contain text")
    return documents


def read_joined(file: Path, column: str | None = None) -> str:
    """Read the texts of a file, joined by newlines. Arguments and errors are those of `read_texts`."""
    return "\n".join(read_texts(file, column))


def read_lines_text(file: Path, remedy: str) -> str:
    """Read a plain text file with one item per line.

    Raises:
        DataError: the file cannot be read, or contains records, for which `remedy` is the remedy.
    """
    if holds_records(file):
        raise DataError(str(file), "is a file of records", remedy)
    return read_text(file)


def holds_records(file: Path) -> bool:
    return file.name.endswith(RECORD_SUFFIXES)
