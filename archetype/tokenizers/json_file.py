"""Base class for tokenizers without a published file format, saved in archetype_tokenizer.json."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from archetype.errors import DataError
from archetype.io.atomic import write_json
from archetype.io.files import read_json
from archetype.tokenizers.files import Flag, TokenId, validated
from archetype.tokenizers.tokenizer import Tokenizer

FILE = "archetype_tokenizer.json"


class TokenizerFile(BaseModel):
    # kinds with further fields derive from this class
    model_config = ConfigDict(extra="forbid")

    kind: str
    bos: Annotated[TokenId | None, Field(description="a token id or null")] = None
    eos: Annotated[list[TokenId], Field(description="a list of token ids")] = []
    adds_bos: Flag = False


class JSONTokenizer(Tokenizer):
    """Tokenizer that is saved as its constructor arguments.

    Attributes:
        fields: model of the file. Fields that `TokenizerFile` lacks are constructor arguments and attributes.
    """

    files = (FILE,)
    fields: ClassVar[type[TokenizerFile]] = TokenizerFile

    @classmethod
    def open(cls, file: Path) -> Tokenizer:
        from archetype.tokenizers.registry import tokenizer_class

        data = read_json(file)
        kind = data.get("kind")
        registered = tokenizer_class(kind)
        if not issubclass(registered, JSONTokenizer):
            raise DataError("kind", f"a tokenizer of kind {kind} is not saved in this file", "fix the file")
        contents = validated(registered.fields, data)
        tokenizer = registered(**{name: getattr(contents, name) for name in registered._argument_names()})
        tokenizer.bos, tokenizer.eos, tokenizer.adds_bos = contents.bos, tuple(contents.eos), contents.adds_bos
        return tokenizer

    def save(self, folder: Path) -> None:
        arguments: dict[str, Any] = {name: getattr(self, name) for name in self._argument_names()}
        special = {"bos": self.bos, "eos": list(self.eos), "adds_bos": self.adds_bos}
        write_json(folder / FILE, {"kind": self.kind, **arguments, **special})

    @classmethod
    def _argument_names(cls) -> list[str]:
        return [name for name in cls.fields.model_fields if name not in TokenizerFile.model_fields]
