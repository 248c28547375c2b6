"""RWKV's World vocabulary: at each place in the UTF-8 bytes of a text, the longest token that matches there."""

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io.atomic import write_bytes
from archetype.io.files import DAMAGED, read_bytes
from archetype.tokenizers import special_tokens
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8, readable

FILE = "rwkv_vocab_v20230424.txt"  # the only version that has been published
END = 0  # id of the end of a text, for which the file has no line
NAME = "<|endoftext|>"  # of that id, if tokenizer_config.json does not name it


class RWKVTokenizer(Tokenizer):
    """Tokenizer of RWKV from its fifth version on (github.com/BlinkDL/RWKV-LM).

    Args:
        tokens: bytes by id, with every single byte. Of several ids with the same bytes, encoding chooses the largest.
        config: contents of tokenizer_config.json, which may name the token that ends a text.

    Raises:
        DataError: a single byte has no token, or an id is invalid.
    """

    kind = "rwkv"
    files = ("rwkv_vocab*.txt",)

    @classmethod
    def open(cls, file: Path) -> "RWKVTokenizer":
        return cls(read_vocabulary(read_bytes(file)), special_tokens.read_config(file.parent))

    def __init__(self, tokens: Mapping[int, bytes], config: Mapping[str, Any] | None = None) -> None:
        self.tokens, self._config = dict(sorted(tokens.items())), dict(config or {})
        self._ids = {token: id for id, token in self.tokens.items() if token}
        if missing := [byte for byte in range(256) if bytes((byte,)) not in self._ids]:
            raise DataError("", f"has no token for the byte {missing[0]:#04x}", DAMAGED)
        if wrong := [id for id in tokens if not END < id < 2**24]:
            raise DataError("", f"{wrong[0]} is not the id of a token", DAMAGED)
        # lengths of the tokens that begin with two bytes, the longest first
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[:2], {1}).add(len(token))
        self._lengths = {start: sorted(sizes, reverse=True) for start, sizes in lengths.items()}
        self.bos, self.eos = END, (END,)
        names = self._config.get("added_tokens_decoder")
        named = names.get(str(END)) if isinstance(names, dict) else None
        self.name = special_tokens.content(named) or special_tokens.content(self._config.get("eos_token")) or NAME

    @property
    def vocab_size(self) -> int:
        return 1 + max(self.tokens)

    @property
    def special_tokens(self) -> dict[str, int]:
        return {self.name: END}

    def encode(self, text: str) -> list[int]:
        data, at, ids, known = check_utf8(text).encode(), 0, [], self._ids
        while at < len(data):
            for length in self._lengths.get(data[at : at + 2], (1,)):
                if (token := data[at : at + length]) in known:
                    ids.append(known[token])
                    at += len(token)
                    break
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.tokens.get(id, b"") for id in ids).decode("utf-8", "replace")

    def token(self, id: int) -> str:
        return self.name if id == END else readable(self.tokens.get(id, b""))

    def save(self, folder: Path) -> None:
        lines = (f"{id} {_literal(token)} {len(token)}\n" for id, token in self.tokens.items())
        write_bytes(folder / FILE, "".join(lines).encode())
        special_tokens.write_config(folder, self, self._config, self.token)


def _literal(token: bytes) -> str:
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)


def read_vocabulary(data: bytes) -> dict[int, bytes]:
    """Return the bytes of each id. A line has the id, a string or bytes as Python writes them, and their length.

    Raises:
        DataError: a line is invalid or repeats an id.
    """
    tokens: dict[int, bytes] = {}
    # not `splitlines`, which also splits at characters of tokens
    for index, line in enumerate(data.rstrip(b"\n").split(b"\n"), start=1):
        try:
            id, rest = line.decode().rstrip("\r").split(" ", 1)
            literal, length = rest.rsplit(" ", 1)
            value = ast.literal_eval(literal)
            token = value.encode() if isinstance(value, str) else value
            is_sound = isinstance(token, bytes) and len(token) == int(length) > 0 and int(id) not in tokens
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            is_sound = False
        if not is_sound:
            raise DataError(f"line {index}", "is not an id, a token and its length", DAMAGED)
        tokens[int(id)] = token
    return tokens


KINDS = (RWKVTokenizer,)
