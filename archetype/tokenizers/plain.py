"""Tokenizers without a published file format, which are saved in our own."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from archetype.io.atomic import write_json
from archetype.tokenizers.tokenizer import Tokenizer

FILE = "archetype_tokenizer.json"


class PlainTokenizer(Tokenizer):
    """Bytes, characters or words."""

    @abstractmethod
    def contents(self) -> dict[str, Any]:
        """What the file holds beside the kind and the special ids."""

    @classmethod
    @abstractmethod
    def from_contents(cls, contents: Mapping[str, Any]) -> Self:
        """The tokenizer that `contents` describes.

        Raises:
            DataError: names the field at fault.
        """

    def save(self, folder: Path) -> None:
        special = {"bos": self.bos, "eos": list(self.eos), "adds_bos": self.adds_bos}
        write_json(folder / FILE, {"kind": self.kind, **self.contents(), **special})
