"""The data that a recipe names: files, and how much of them is held out for validation."""

from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from archetype.convert.image_processor import ImageProcessor, square_pictures
from archetype.data.corpus import Corpus, corpus
from archetype.data.held_out import Split, held_out_lines, split
from archetype.data.images import has_pixels
from archetype.data.packing import Documents
from archetype.data.pairs import PAIR, read_lines, without_empty
from archetype.data.records import columns_by_field, read_records
from archetype.data.shards import is_held_out
from archetype.data.skipping import decoded_lines, skipping_limit
from archetype.data.sources import HUGGING_FACE, RECORD_SUFFIXES, SUFFIXES, Sources, expand, pinned
from archetype.data.tokenization import cache_folder, tokenized
from archetype.errors import DataError, SpecError, one_line
from archetype.io.text import read_data, read_text
from archetype.models.spec import ModelSpec
from archetype.settings.training import (
    Columns,
    ImageFiles,
    SkipBad,
    SourceFiles,
    TargetFiles,
    TextFiles,
    TokenizerName,
    VocabSize,
)
from archetype.spec.base import Flag, Length, Positive, Spec
from archetype.spec.kinds import Part, part
from archetype.tokenizers import Tokenizer

MAX_FILES_SHOWN = 80  # characters of the files' names in a message
SAMPLE = 2**24  # characters of documents that a tokenizer is trained on


class Data(Part):
    """Base of all kinds of data.

    Attributes:
        validation_fraction: share that is held out.
    """

    path_fields: ClassVar[tuple[str, ...]] = ()
    preset: ClassVar[str] = "llama-tiny"  # a small model that learns from such data
    is_chat: ClassVar[bool] = False  # whether a chat template renders all of them
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

    def prepared_for(self, spec: ModelSpec, processor: Callable[[], ImageProcessor | None]) -> Self:
        """The same data with what a model says of their preparation; `processor` is that of a model trained before."""
        return self


class FileData(Data):
    """Base of data that are read from files."""

    skip_bad: SkipBad = 0


class TokenizedData(FileData):
    """Base of data that are read through a tokenizer.

    A tokenizer of a kind is trained on what is not held out; with `lowercase` it turns every text to lower case.

    Attributes:
        lowercase: whether texts are read in small letters.
    """

    tokenizer: TokenizerName = "byte_bpe"
    vocab_size: VocabSize = None
    lowercase: Flag = False

    @abstractmethod
    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """The texts without what is held out."""

    def all_texts(self, texts: dict[str, str]) -> list[str]:
        """The texts that are in memory, with what is held out."""
        return list(texts.values())


class RunningText(TokenizedData):
    """Base of data of which each token follows from those before."""

    @abstractmethod
    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Corpus | Documents:
        """All tokens, those to train on and those that are held out."""


@part
class TextData(RunningText):
    """UTF-8 files, one after the other, some of which is held out.

    Attributes:
        split: which parts are held out: everywhere (stretches spread over the text), or its end.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["corpus"] = "corpus"
    text: TextFiles = ()
    split: Split = "everywhere"

    def read_texts(self, folder: Path) -> dict[str, str]:
        return {"text": "".join(_read(self.text, folder, "text"))}

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """The text without what is held out."""
        return [split(text, self.validation_fraction, self.split)[0] for text in texts.values()]

    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Corpus:
        """The text in memory."""
        return corpus(texts["text"], tokenizer, self.validation_fraction, self.split)


class PackedDocuments(RunningText):
    """Base of data that are tokenised once, on disk, and packed into rows; held out are those whose hash is low.

    Attributes:
        cross_document_attention: whether a position attends to the documents before its own in a row.
        max_validation_tokens: measured of those that are held out.
        cache: the folder of tokenised documents (absent: ARCHETYPE_CACHE, or archetype in the user's cache).
    """

    cross_document_attention: Flag = True
    max_validation_tokens: Length = 2**20
    cache: str | None = None

    @abstractmethod
    def parts_and_weights(self) -> tuple[list[Sources], list[Fraction]]:
        """The sources, and how many rows of each there are for those of the others."""

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """A sample of the documents that are not held out, from all pieces of all sources alike.

        For a tokenizer of characters it is the alphabet of all documents: one that is unknown could not be scored.

        Raises:
            DataError: names the files where they hold no text to learn from.
        """
        sample = self._sample()
        if not any(sample):
            cause = "no text is left to train on"
            remedy = "name files with more text, or lower data.validation_fraction"
            raise DataError(one_line(", ".join(self.files()), MAX_FILES_SHOWN), cause, remedy)
        return sample

    def _sample(self) -> list[str]:
        pieces = [(sources, piece) for sources in self.parts_and_weights()[0] for piece in sources.pieces()]
        if self.tokenizer == "characters":
            return [
                "".join(sorted({letter for part, piece in pieces for text in part.documents(piece) for letter in text}))
            ]
        sample: list[str] = []
        for sources, piece in pieces:
            left = SAMPLE // len(pieces)
            for text in sources.documents(piece):
                if not is_held_out(text, self.validation_fraction):
                    sample.append(text[:left])
                    left -= len(text)
                if left <= 0:
                    break
        return sample

    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Documents:
        """The tokens of the cache, made where they are not there yet."""
        parts, weights = self.parts_and_weights()
        cache = cache_folder(self.cache)
        return Documents(
            [tokenized(part, tokenizer, cache) for part in parts],
            self.validation_fraction,
            weights,
            not self.cross_document_attention,
            self.max_validation_tokens,
        )


@part
class DocumentData(PackedDocuments):
    """Documents of any number and size: text files, JSON, CSV, TSV, Parquet, Hugging Face data sets.

    Attributes:
        field: of files of records and data sets: the column that holds the text.
        separator: the line that stands between the documents of a text file (absent: a file is one document, or several
            of a MiB).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["documents"] = "documents"
    text: TextFiles = ()
    field: str = "text"
    separator: str | None = None

    def parts_and_weights(self) -> tuple[list[Sources], list[Fraction]]:
        if not self.text:
            raise SpecError("data.text", "no text is given", "name a file with --text, or in the recipe")
        return [Sources(expand(self.text, SUFFIXES), self.field, self.separator)], [Fraction(1)]

    def with_absolute_paths(self) -> Self:
        """Folders and patterns stay what they are; a data set is named with its revision."""
        return self.replace(text=tuple(map(_anchored, self.text)), cache=self.cache and _absolute(self.cache))


class MixturePart(Spec):
    """One of the sources of a mixture.

    Attributes:
        weight: its share of the rows, over the sum of all weights.
        text: as of kind documents.
        field: as of kind documents.
        separator: as of kind documents.
    """

    weight: Positive = 1.0
    text: tuple[str, ...]
    field: str = "text"
    separator: str | None = None


@part
class MixtureData(PackedDocuments):
    """Documents of several sources, each with its share of the rows, however large it is.

    A small source is repeated and a large one cut short: an epoch of each ends by itself.

    Attributes:
        parts: the sources and their weights.
    """

    kind: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = ()

    def files(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.text)

    def parts_and_weights(self) -> tuple[list[Sources], list[Fraction]]:
        if not self.parts:
            raise SpecError("data.parts", "no part is given", "name one: {text: [FILE], weight: 1}")
        sources = [Sources(expand(part.text, SUFFIXES), part.field, part.separator) for part in self.parts]
        return sources, [Fraction(str(part.weight)) for part in self.parts]

    def with_absolute_paths(self) -> Self:
        """Folders and patterns stay what they are; a data set is named with its revision."""
        parts = tuple(part.replace(text=tuple(map(_anchored, part.text))) for part in self.parts)
        return self.replace(parts=parts, cache=self.cache and _absolute(self.cache))


@part
class PairData(TokenizedData):
    """UTF-8 files whose lines belong together, a source and its target.

    Attributes:
        split: which lines are held out: everywhere (spread evenly), or the last ones (end).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("source", "target")
    preset: ClassVar[str] = "transformer-tiny"
    kind: Literal["pairs"] = "pairs"
    source: SourceFiles = ()
    target: TargetFiles = ()
    split: Split = "everywhere"
    columns: Columns = ()

    def read_texts(self, folder: Path) -> dict[str, str]:
        """Both sides; the last line of a file does not run into the first of the next.

        Line ends within a record's texts become spaces.
        """
        if tables := [file for file in (*self.source, *self.target) if file.endswith(RECORD_SUFFIXES)]:
            if self.target or len(tables) < len(self.source):
                cause = "is a file of records, which has both sides"
                raise SpecError(f"data: {tables[0]}", cause, "name it with --source alone, or give two files of lines")
            columns = columns_by_field(self.columns, PAIR)
            records = [one for file in tables for one in read_records(folder / file, PAIR, columns=columns)]
            return {side: "".join(f"{' '.join(one[side].splitlines())}\n" for one in records) for side in PAIR}
        if self.columns:
            raise SpecError("data.columns", "files of lines have no columns", "leave it out, or give a file of records")
        sides = {field: _read(getattr(self, field), folder, field) for field in self.path_fields}
        return {
            field: "".join(text if text.endswith("\n") else f"{text}\n" for text in texts)
            for field, texts in sides.items()
        }

    def sides(self, texts: dict[str, str]) -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
        """Sources and targets to learn from, and those that are held out."""
        lines = read_lines(texts["source"], texts["target"], "data.source, data.target")
        sources, targets = without_empty(*lines)
        held_out = held_out_lines(len(sources), self.validation_fraction, self.split)

        def side(is_held_out: bool) -> tuple[list[str], list[str]]:
            numbers = [number for number in range(len(sources)) if (number in held_out) == is_held_out]
            return [sources[number] for number in numbers], [targets[number] for number in numbers]

        return side(False), side(True)

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """Both sides of the pairs that are not held out."""
        return ["\n".join(lines) for lines in self.sides(texts)[0]]


@part
class ImageData(FileData):
    """Images and their classes; those held out are drawn by the seed.

    They are `images`, (N, H, W) or (N, C, H, W), and `labels`, (N,), of a .npz file, or the files of a folder with a
    subfolder for each class.

    Attributes:
        image_processor: how pictures, and bytes in a .npz file, become numbers (absent: as the trained model says, else
            the files' middle squares become numbers of 0 to 1).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("file",)
    preset: ClassVar[str] = "vit-tiny"
    kind: Literal["images"] = "images"
    file: ImageFiles = ""
    image_processor: ImageProcessor | None = None

    def prepared_for(self, spec: ModelSpec, processor: Callable[[], ImageProcessor | None]) -> Self:
        """With an image processor where there are pixels.

        Raises:
            SpecError: the recipe has one, and there are none.
        """
        path = Path(self.file)
        if not self.file or spec.image_shape is None or not path.exists():
            return self  # which is refused where the data are read
        if not has_pixels(path):
            if self.image_processor is not None:
                cause = f"{path.name} holds numbers, which a model reads as they are"
                raise SpecError("data.image_processor", cause, "leave it out, or give pictures")
            return self
        chosen = self.image_processor or processor()
        if chosen is None and path.is_dir():
            chosen = square_pictures(*spec.image_shape)
        return self.replace(image_processor=chosen)


def _absolute(value: Any) -> Any:
    if isinstance(value, str):
        return str(Path(value).absolute()) if value else value
    return expand(value)


def _anchored(name: str) -> str:
    return pinned(name) if name.startswith(HUGGING_FACE) else str(Path(name).absolute())


def _read(files: tuple[str, ...], folder: Path, field: str) -> list[str]:
    if not files:
        raise SpecError(f"data.{field}", f"no {field} is given", f"name a file with --{field}, or in the recipe")
    if not skipping_limit():
        return [read_text(folder / file) for file in files]
    return [decoded_lines(read_data(folder / file), str(folder / file)).removeprefix("\ufeff") for file in files]
