"""The data that a recipe names: files, and how much of them is held out for validation."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from archetype.data.corpus import split
from archetype.data.pairs import read_lines
from archetype.errors import DataError, SpecError
from archetype.io.text import read_text
from archetype.spec.base import Flag, Size
from archetype.spec.part import Part, part

SUFFIXES = (".txt", ".txt.gz", ".md")  # of the files that are read of a folder


class Data(Part):
    """Base of all kinds of data.

    Attributes:
        validation_fraction: share that is held out.
    """

    renamed: ClassVar[dict[str, str]] = {"validation": "validation_fraction"}
    path_fields: ClassVar[tuple[str, ...]] = ()
    kind: str
    validation_fraction: Annotated[float, Field(gt=0, lt=0.9)] = 0.1

    def files(self) -> tuple[str, ...]:
        """All files, in the order of their fields."""
        values = [getattr(self, field) for field in self.path_fields]
        return tuple(file for value in values for file in ([value] if isinstance(value, str) else value))

    def with_absolute_paths(self) -> Self:
        """A copy that is still right when the run is resumed from another folder."""
        return self.replace(**{field: _absolute(getattr(self, field)) for field in self.path_fields})

    def read_texts(self, folder: Path) -> dict[str, str]:
        """All texts by the field that names them; relative paths start at `folder`."""
        return {}


class TokenizedData(Data):
    """Base of data that are read through a tokenizer.

    `tokenizer` is a kind, to be trained on what is not held out, or a folder that holds a trained one. With `lowercase`
    one that is trained turns every text to lower case.

    Attributes:
        tokenizer: a kind, trained on the data, or the path of a tokenizer.
        vocab_size: tokens of a tokenizer that is trained (absent: the specification's, or its kind's).
        lowercase: whether texts are read in small letters.
    """

    tokenizer: str = "byte_bpe"
    vocab_size: Size | None = None
    lowercase: Flag = False

    @abstractmethod
    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """The texts without what is held out."""


@part
class TextData(TokenizedData):
    """UTF-8 files, one after the other, the last part of which is held out.

    Attributes:
        text: files of the text, in order.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["corpus"] = "corpus"
    text: tuple[str, ...] = ()

    def read_texts(self, folder: Path) -> dict[str, str]:
        """The one text."""
        return {"text": "".join(_read(self.text, folder, "text"))}

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """The beginning of the text."""
        return [split(text, self.validation_fraction)[0] for text in texts.values()]


@part
class PairData(TokenizedData):
    """UTF-8 files whose lines belong together, a source and its target; the last lines are held out.

    Attributes:
        source: files of the sources, a line each.
        target: files of their targets, line by line.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("source", "target")
    kind: Literal["pairs"] = "pairs"
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()

    def read_texts(self, folder: Path) -> dict[str, str]:
        """Both sides; the last line of a file does not run into the first of the next."""
        sides = {field: _read(getattr(self, field), folder, field) for field in self.path_fields}
        return {
            field: "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)
            for field, texts in sides.items()
        }

    def lines(self, texts: dict[str, str]) -> tuple[list[str], list[str], int]:
        """Sources and targets, and how many of them are not held out."""
        sources, targets = read_lines(texts["source"], texts["target"], "data.source, data.target")
        return sources, targets, round(len(sources) * (1 - self.validation_fraction))

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """The first lines of both sides."""
        sources, targets, cut = self.lines(texts)
        return ["\n".join(lines[:cut]) for lines in (sources, targets)]


@part
class ImageData(Data):
    """A .npz file of `images`, (N, H, W) or (N, C, H, W), and `labels`, (N,); those held out are drawn by the seed.

    Attributes:
        file: path of the .npz file.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("file",)
    kind: Literal["images"] = "images"
    file: str = ""


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Files by their absolute paths, those of folders and of patterns such as books/*.txt in the order of names.

    Raises:
        DataError: a folder or a pattern has none.
    """
    files: list[str] = []
    for name in names:
        path = Path(name).absolute()
        inside = [path]
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if file.name.endswith(SUFFIXES) and file.is_file()]
        elif not path.exists() and any(letter in name for letter in "*?["):
            pattern = path.relative_to(path.anchor).as_posix()
            inside = [file for file in sorted(Path(path.anchor).glob(pattern)) if file.is_file()]
        if not inside:
            raise DataError(name, f"holds no file of {', '.join(SUFFIXES)}", "name files, or a pattern such as a/*.md")
        files += map(str, inside)
    return tuple(files)


def _absolute(value: Any) -> Any:
    if isinstance(value, str):
        return str(Path(value).absolute()) if value else value
    return expand(value)


def _read(files: tuple[str, ...], folder: Path, field: str) -> list[str]:
    if not files:
        raise SpecError(f"data.{field}", f"no {field} is given", f"name a file with --{field}, or in the recipe")
    return [read_text(folder / file) for file in files]
