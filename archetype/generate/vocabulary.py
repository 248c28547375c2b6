"""The vocabulary of a tokenizer in the form that llguidance requires."""

from collections.abc import Sequence

from archetype.errors import ArchetypeError, SpecError
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.token_bytes import TokenBytes

META = frozenset(r"\.+*?()|[]{}^$#&-~")  # characters that are escaped in a regular expression


class Vocabulary:
    """Bytes of every token, and tokenization of bytes.

    Args:
        tokenizer: any tokenizer except one of whole words.

    Attributes:
        ends: the end tokens; without end tokens, an id beyond the vocabulary, which is never generated.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, ends: tuple[int, ...]) -> None:
        self.tokenizer, self.ends, self._can_end = tokenizer, ends or (tokenizer.vocab_size,), bool(ends)
        self.eos_token_id = self.ends[0]
        special = {*tokenizer.special_tokens.values(), *self.ends}
        self.special_token_ids = sorted(special)
        bytes_of = TokenBytes(tokenizer)
        self.tokens = [b"" if id in special else bytes_of(id) for id in range(tokenizer.vocab_size)]
        self.tokens += [b""] * (max(self.ends) + 1 - len(self.tokens))
        self._ids = {token: id for id, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize bytes exactly: as the tokenizer does, or greedily if it cannot or would add a space."""
        data = text.encode() if isinstance(text, str) else text
        try:
            ids = self.tokenizer.encode(data.decode(errors="ignore"))
        except ArchetypeError:  # a character outside its vocabulary
            ids = []
        if b"".join(self.tokens[id] for id in ids) == data:
            return ids
        ids = []
        while data:
            lengths = range(min(len(data), self._longest), 0, -1)
            if (token := next((data[:length] for length in lengths if data[:length] in self._ids), b"")) == b"":
                break  # no token has this byte
            ids.append(self._ids[token])
            data = data[len(token) :]
        return ids

    def check_choices(self, choices: Sequence[str]) -> None:
        """Raise an error for a choice that can never be generated.

        Raises:
            SpecError: names the first such choice.
        """
        known = set(choices)
        for text in choices:
            if (ids := self._spelled(text.encode())) is None:
                cause = "cannot be written with this tokenizer's tokens"
            elif (written := self.tokenizer.decode(ids)) != text:
                cause = f"would be {written!r:.80} in this tokenizer's tokens"
            elif not self._can_end and any(other != text and other.startswith(text) for other in known):
                cause = "is a prefix of another choice, and the tokenizer has no end token"
            elif not self._can_end and not text:
                cause = "is empty, and the tokenizer has no end token"
            else:
                continue
            raise SpecError("choices", f"{text!r:.80} {cause}", "remove this choice, or spell it differently")

    def _spelled(self, data: bytes) -> list[int] | None:
        # by dynamic programming if needed; None if no tokens have exactly these bytes
        ids = self(data)
        if b"".join(self.tokens[id] for id in ids) == data:
            return ids
        last: list[int | None] = [-1, *[None] * len(data)]  # at each end index, the last token up to there
        for end in range(1, len(data) + 1):
            pieces = (data[start:end] for start in range(max(0, end - self._longest), end) if last[start] is not None)
            last[end] = next((self._ids[piece] for piece in pieces if piece in self._ids), None)
        ids, end = [], len(data)
        while end and (id := last[end]) is not None:
            ids.insert(0, id)
            end -= len(self.tokens[id])
        return None if end else ids


def alternatives(choices: Sequence[str]) -> str:
    """Return a regular expression that matches exactly these texts."""
    escaped = ("".join(f"\\{sign}" if sign in META else sign for sign in text) for text in choices)
    return f"(?:{'|'.join(escaped)})"
