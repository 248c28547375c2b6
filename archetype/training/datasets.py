"""`data` sections of recipes: files to read, and how they are split into training and validation data."""

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

MAX_FILES_SHOWN = 80  # characters of file names in a message
SAMPLE = 2**24  # characters of documents on which a tokenizer is trained


class Data(Part):
    """Base of all kinds of data.

    Attributes:
        validation_fraction: fraction of the data used for validation.
    """

    path_fields: ClassVar[tuple[str, ...]] = ()
    preset: ClassVar[str] = "llama-tiny"  # a small model that learns from such data
    is_chat: ClassVar[bool] = False  # whether a chat template renders the examples
    kind: str
    validation_fraction: Annotated[float, Field(gt=0, lt=0.9)] = 0.1

    def files(self) -> tuple[str, ...]:
        values = [getattr(self, field) for field in self.path_fields]
        return tuple(file for value in values for file in ([value] if isinstance(value, str) else value))

    def with_absolute_paths(self) -> Self:
        """Return a copy with absolute paths, so that a run can be resumed from another folder."""
        return self.replace(**{field: _absolute(getattr(self, field)) for field in self.path_fields})

    def read_texts(self, folder: Path) -> dict[str, str]:
        """Read the data as {field: text}. Relative paths start at `folder`."""
        return {}

    def prepared_for(self, spec: ModelSpec, processor: Callable[[], ImageProcessor | None]) -> Self:
        """Return the data with the image processor that a model needs; `processor` returns the pretrained model's."""
        return self


class FileData(Data):
    skip_bad: SkipBad = 0


class TokenizedData(FileData):
    """Base of tokenized data. The tokenizer is trained on the training part unless the recipe names a trained one.

    Attributes:
        lowercase: whether texts are lowercased; only for a tokenizer trained by this run.
    """

    tokenizer: TokenizerName = "byte_bpe"
    vocab_size: VocabSize = None
    lowercase: Flag = False

    @abstractmethod
    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """Return the training part of the texts."""

    def all_texts(self, texts: dict[str, str]) -> list[str]:
        """Return all texts that are in memory, including validation texts."""
        return list(texts.values())


class RunningText(TokenizedData):
    """Base of data for next-token prediction."""

    @abstractmethod
    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Corpus | Documents:
        """Return the training and validation tokens."""


@part
class TextData(RunningText):
    """Concatenated UTF-8 text files.

    Attributes:
        split: where validation text is taken from: everywhere (excerpts spread over the text), or end.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["corpus"] = "corpus"
    text: TextFiles = ()
    split: Split = "everywhere"

    def read_texts(self, folder: Path) -> dict[str, str]:
        return {"text": "".join(_read(self.text, folder, "text"))}

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        return [split(text, self.validation_fraction, self.split)[0] for text in texts.values()]

    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Corpus:
        return corpus(texts["text"], tokenizer, self.validation_fraction, self.split)


class PackedDocuments(RunningText):
    """Base of documents that are tokenized once, stored on disk and packed into rows.

    Documents with low hashes are used for validation.

    Attributes:
        cross_document_attention: whether a position attends to earlier documents in its row.
        max_validation_tokens: maximal number of validation tokens evaluated.
        cache: folder of tokenized documents (absent: ARCHETYPE_CACHE, or archetype in the user's cache).
    """

    cross_document_attention: Flag = True
    max_validation_tokens: Length = 2**20
    cache: str | None = None

    @abstractmethod
    def parts_and_weights(self) -> tuple[list[Sources], list[Fraction]]:
        """Return the sources, and the relative number of rows of each source."""

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        """Return a sample of the training documents, drawn evenly from all parts of all sources."""
        sample = self._sample()
        if not any(sample):
            cause = "no text is left for training"
            remedy = "add files with more text, or lower data.validation_fraction"
            raise DataError(one_line(", ".join(self.files()), MAX_FILES_SHOWN), cause, remedy)
        return sample

    def _sample(self) -> list[str]:
        pieces = [(sources, piece) for sources in self.parts_and_weights()[0] for piece in sources.pieces()]
        # the alphabet of all documents: an unknown character could not be scored
        if self.tokenizer == "characters":
            return [
                "".join(sorted({letter for part, piece in pieces for text in part.documents(piece) for letter in text}))
            ]
        sample: list[str] = []
        for sources, piece in pieces:
            left = SAMPLE // len(pieces)  # characters left for this piece
            for text in sources.documents(piece):
                if not is_held_out(text, self.validation_fraction):
                    sample.append(text[:left])
                    left -= len(text)
                if left <= 0:
                    break
        return sample

    def tokenized(self, texts: dict[str, str], tokenizer: Tokenizer) -> Documents:
        """Load the tokenized documents from the cache, after tokenizing those that are missing there."""
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
    """Documents of any number and size in text, JSON, CSV, TSV or Parquet files, or Hugging Face datasets.

    Attributes:
        field: text column of record files and datasets.
        separator: line between documents in a text file (absent: a file is one document, split at about one MiB).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["documents"] = "documents"
    text: TextFiles = ()
    field: str = "text"
    separator: str | None = None

    def parts_and_weights(self) -> tuple[list[Sources], list[Fraction]]:
        if not self.text:
            raise SpecError("data.text", "no text was passed", "name a file with --text, or in the recipe")
        return [Sources(expand(self.text, SUFFIXES), self.field, self.separator)], [Fraction(1)]

    def with_absolute_paths(self) -> Self:
        # folders and patterns are not expanded; a dataset is pinned to its revision
        return self.replace(text=tuple(map(_anchored, self.text)), cache=self.cache and _absolute(self.cache))


class MixturePart(Spec):
    """Document source in a mixture.

    Attributes:
        weight: relative number of rows, normalized over all sources.
        text: files or datasets, as for kind documents.
        field: text column, as for kind documents.
        separator: line between documents, as for kind documents.
    """

    weight: Positive = 1.0
    text: tuple[str, ...]
    field: str = "text"
    separator: str | None = None


@part
class MixtureData(PackedDocuments):
    """Documents from several sources, each with a fixed share of the rows.

    Small sources are repeated more often, because each source has separate epochs.

    Attributes:
        parts: document sources with their weights.
    """

    kind: Literal["mixture"] = "mixture"
    parts: tuple[MixturePart, ...] = ()

    def files(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.text)

    def parts_and_weights(self) -> tuple[list[Sources], list[Fraction]]:
        if not self.parts:
            raise SpecError("data.parts", "no part was passed", "name a part: {text: [FILE], weight: 1}")
        sources = [Sources(expand(part.text, SUFFIXES), part.field, part.separator) for part in self.parts]
        # exact: the schedule of a mixture must not depend on rounding
        return sources, [Fraction(str(part.weight)) for part in self.parts]

    def with_absolute_paths(self) -> Self:
        parts = tuple(part.replace(text=tuple(map(_anchored, part.text))) for part in self.parts)
        return self.replace(parts=parts, cache=self.cache and _absolute(self.cache))


@part
class PairData(TokenizedData):
    """UTF-8 files with parallel lines of sources and targets, or a file of records with both.

    Attributes:
        split: where validation lines are taken from: everywhere (spread evenly), or end.
    """

    path_fields: ClassVar[tuple[str, ...]] = ("source", "target")
    preset: ClassVar[str] = "transformer-tiny"
    kind: Literal["pairs"] = "pairs"
    source: SourceFiles = ()
    target: TargetFiles = ()
    split: Split = "everywhere"
    columns: Columns = ()

    def read_texts(self, folder: Path) -> dict[str, str]:
        """Read sources and targets, one per line. Line breaks within a record's text become spaces."""
        if tables := [file for file in (*self.source, *self.target) if file.endswith(RECORD_SUFFIXES)]:
            if self.target or len(tables) < len(self.source):
                cause = "is a file of records, which contains both sides"
                raise SpecError(f"data: {tables[0]}", cause, "remove --target, or pass two text files")
            columns = columns_by_field(self.columns, PAIR)
            records = [record for file in tables for record in read_records(folder / file, PAIR, columns=columns)]
            return {side: "".join(f"{' '.join(pair[side].splitlines())}\n" for pair in records) for side in PAIR}
        if self.columns:
            raise SpecError("data.columns", "text files have no columns", "remove it, or use a file of records")
        sides = {field: _read(getattr(self, field), folder, field) for field in self.path_fields}
        return {  # the last line of a file must not join the first line of the next
            field: "".join(content if content.endswith("\n") else f"{content}\n" for content in contents)
            for field, contents in sides.items()
        }

    def sides(self, texts: dict[str, str]) -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
        """Return (sources, targets) for training and (sources, targets) for validation."""
        sources, targets = without_empty(*read_lines(texts["source"], texts["target"], "data.source, data.target"))
        held_out = held_out_lines(len(sources), self.validation_fraction, self.split)

        def side(is_held_out: bool) -> tuple[list[str], list[str]]:
            lines = [line for line in range(len(sources)) if (line in held_out) == is_held_out]
            return [sources[line] for line in lines], [targets[line] for line in lines]

        return side(False), side(True)

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        return ["\n".join(lines) for lines in self.sides(texts)[0]]


@part
class ImageData(FileData):
    """Labelled images. The seed selects the validation images.

    The images are the arrays `images`, (N, H, W) or (N, C, H, W), and `labels`, (N,), in a .npz file, or the files in a
    folder with one subfolder per class.

    Attributes:
        image_processor: converts pixels of image files and uint8 arrays to model inputs (absent: the pretrained
            model's, or else image files are cropped to their central square and scaled to 0 ... 1).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("file",)
    preset: ClassVar[str] = "vit-tiny"
    kind: Literal["images"] = "images"
    file: ImageFiles = ""
    image_processor: ImageProcessor | None = None

    def prepared_for(self, spec: ModelSpec, processor: Callable[[], ImageProcessor | None]) -> Self:
        """Return the data with an image processor if they contain pixels."""
        path = Path(self.file)
        if not self.file or spec.image_shape is None or not path.exists():
            return self  # the error is raised when the data are read
        if not has_pixels(path):
            if self.image_processor is not None:
                cause = f"{path.name} contains model inputs, not pixels"
                raise SpecError("data.image_processor", cause, "remove it, or use image files")
            return self
        image_processor = self.image_processor or processor()
        if image_processor is None and path.is_dir():
            image_processor = square_pictures(*spec.image_shape)
        return self.replace(image_processor=image_processor)


def _absolute(value: Any) -> Any:
    if isinstance(value, str):
        return str(Path(value).absolute()) if value else value
    return expand(value)


def _anchored(name: str) -> str:
    return pinned(name) if name.startswith(HUGGING_FACE) else str(Path(name).absolute())


def _read(files: tuple[str, ...], folder: Path, field: str) -> list[str]:
    if not files:
        raise SpecError(f"data.{field}", f"no {field} was passed", f"name a file with --{field}, or in the recipe")
    if not skipping_limit():
        return [read_text(folder / file) for file in files]
    # `read_text` removes a byte order mark itself
    return [decoded_lines(read_data(folder / file), str(folder / file)).removeprefix("\ufeff") for file in files]
