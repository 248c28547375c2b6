"""`data` sections that are read from records: labelled texts and tokens, conversations, preferences, text pairs."""

import json
from abc import abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar, Literal

from archetype.data import conversation_forms
from archetype.data.labelled_words import FIELDS, wrong_words
from archetype.data.records import TEXT_AND_LABEL, Form, columns_by_field, held_out, read_records
from archetype.data.text_pairs import SCORED_PAIR, TEXT_PAIR, negatives_of, wrong_negatives, wrong_score
from archetype.errors import DataError, SpecError
from archetype.settings.training import (
    Columns,
    ConversationFiles,
    LabelledTextFiles,
    LabelledTokenFiles,
    PreferenceFiles,
    ScoredPairFiles,
    TextPairFiles,
)
from archetype.spec.kinds import part
from archetype.training.datasets import TokenizedData

Records = list[dict[str, Any]]


class RecordData(TokenizedData):
    """Base of data in record files: JSON lines, JSON lists, CSV, TSV or Parquet. Hashes select validation records."""

    path_fields: ClassVar[tuple[str, ...]] = ("examples",)
    record_fields: ClassVar[dict[str, Form]] = {}
    optional_fields: ClassVar[tuple[str, ...]] = ()
    other_fields: ClassVar[tuple[str, ...]] = ()  # read by `convert`
    option: ClassVar[str] = ""
    examples: tuple[str, ...] = ()
    columns: Columns = ()

    def read_texts(self, folder: Path) -> dict[str, str]:
        """Read all records as JSON lines."""
        if not self.examples:
            raise SpecError("data.examples", "no file was passed", f"name a file with {self.option} or in the recipe")
        known = (*self.record_fields, *self.optional_fields, *self.other_fields)
        columns = columns_by_field(self.columns, known)
        reading = (self.record_fields, self.optional_fields, self.fault, columns, self.convert)
        records = [record for file in self.examples for record in read_records(folder / file, *reading)]
        return {"examples": "\n".join(map(json.dumps, records))}

    def split(self, texts: dict[str, str]) -> tuple[Records, Records]:
        """Return the training and the validation records."""
        lines = texts["examples"].split("\n")
        if len(lines) < 2:
            raise DataError(
                self.examples[0], "has only one record", "provide at least two: one for training and one for validation"
            )
        is_held_out = held_out(lines, self.validation_fraction)
        records = [(json.loads(line), out) for line, out in zip(lines, is_held_out.tolist(), strict=True)]
        return [record for record, out in records if not out], [record for record, out in records if out]

    def training_texts(self, texts: dict[str, str]) -> list[str]:
        return ["\n".join(text for record in self.split(texts)[0] for text in self.texts_of(record))]

    def all_texts(self, texts: dict[str, str]) -> list[str]:
        return [text for line in texts["examples"].split("\n") for text in self.texts_of(json.loads(line))]

    def convert(self, record: dict[str, Any]) -> dict[str, Any]:
        """Convert a record in another format to this kind's fields. Raise ValueError if the record is malformed."""
        return record

    def fault(self, record: dict[str, Any]) -> str:
        """Return the fault of a record whose fields have the right types; empty for a valid record."""
        return ""

    @classmethod
    def fits(cls, columns: Collection[str]) -> bool:
        return all(field in columns for field in cls.record_fields)

    @abstractmethod
    def texts_of(self, record: dict[str, Any]) -> list[str]:
        """Return all texts of a record."""


@part
class LabelledText(RecordData):
    """Texts, each labelled with a class name or a number."""

    record_fields: ClassVar[dict[str, Form]] = TEXT_AND_LABEL
    option: ClassVar[str] = "--labelled"
    preset: ClassVar[str] = "bert-tiny"
    kind: Literal["labelled_text"] = "labelled_text"
    examples: LabelledTextFiles = ()

    def texts_of(self, record: dict[str, Any]) -> list[str]:
        return [record["text"]]


@part
class LabelledTokens(RecordData):
    """Texts as lists of words, each word labelled with a class name."""

    record_fields: ClassVar[dict[str, Form]] = FIELDS
    option: ClassVar[str] = "--labelled-tokens"
    preset: ClassVar[str] = "bert-tiny"
    kind: Literal["labelled_tokens"] = "labelled_tokens"
    examples: LabelledTokenFiles = ()

    def fault(self, record: dict[str, Any]) -> str:
        return wrong_words(record)

    def texts_of(self, record: dict[str, Any]) -> list[str]:
        return [" ".join(record["tokens"])]


@part
class Conversations(RecordData):
    """Conversations between a user and an assistant.

    Attributes:
        template: file with a chat template in Jinja (absent: the model's, or else a simple default template).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("examples", "template")
    record_fields: ClassVar[dict[str, Form]] = {"messages": Form("a list of messages", (list,), (dict,))}
    optional_fields: ClassVar[tuple[str, ...]] = ("tools",)
    other_fields: ClassVar[tuple[str, ...]] = conversation_forms.FIELDS
    option: ClassVar[str] = "--chat"
    is_chat: ClassVar[bool] = True
    kind: Literal["chat"] = "chat"
    examples: ConversationFiles = ()
    template: str = ""

    @classmethod
    def fits(cls, columns: Collection[str]) -> bool:
        return conversation_forms.fits(columns)

    def convert(self, record: dict[str, Any]) -> dict[str, Any]:
        """Convert ShareGPT and Alpaca records to records with `messages`."""
        return conversation_forms.as_messages(record)

    def texts_of(self, record: dict[str, Any]) -> list[str]:
        return [str(message.get("content") or "") for message in record["messages"] if isinstance(message, dict)]


@part
class Preferences(RecordData):
    """Prompts with a preferred and a rejected completion.

    Prompt and completions are texts, or lists of messages that are rendered with a chat template.

    Attributes:
        template: file with a chat template in Jinja (absent: the model's).
    """

    path_fields: ClassVar[tuple[str, ...]] = ("examples", "template")
    record_fields: ClassVar[dict[str, Form]] = {
        field: Form("a text or a list of messages", (str, list), (dict,)) for field in ("prompt", "chosen", "rejected")
    }
    option: ClassVar[str] = "--preferences"
    kind: Literal["preferences"] = "preferences"
    examples: PreferenceFiles = ()
    template: str = ""

    def texts_of(self, record: dict[str, Any]) -> list[str]:
        return [
            str(part["content"]) if isinstance(part, dict) else str(part)
            for field in self.record_fields
            for part in (record[field] if isinstance(record[field], list) else [record[field]])
        ]


@part
class TextPairs(RecordData):
    """Pairs of matching texts, such as a question and its answer, with optional negatives."""

    record_fields: ClassVar[dict[str, Form]] = TEXT_PAIR
    optional_fields: ClassVar[tuple[str, ...]] = ("negative",)
    option: ClassVar[str] = "--pairs"
    preset: ClassVar[str] = "bert-tiny"
    kind: Literal["text_pairs"] = "text_pairs"
    examples: TextPairFiles = ()

    def fault(self, record: dict[str, Any]) -> str:
        return wrong_negatives(record)

    def texts_of(self, record: dict[str, Any]) -> list[str]:
        return [record["anchor"], record["positive"], *negatives_of(record)]


@part
class ScoredPairs(RecordData):
    """Pairs of texts, each with a similarity score."""

    record_fields: ClassVar[dict[str, Form]] = SCORED_PAIR
    option: ClassVar[str] = "--scored-pairs"
    preset: ClassVar[str] = "bert-tiny"
    kind: Literal["scored_pairs"] = "scored_pairs"
    examples: ScoredPairFiles = ()

    def fault(self, record: dict[str, Any]) -> str:
        return wrong_score(record)

    def texts_of(self, record: dict[str, Any]) -> list[str]:
        return [record["text1"], record["text2"]]
