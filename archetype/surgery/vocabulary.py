"""Exchange of a tokenizer: the donor tokens that initialize each token of the new vocabulary."""

from collections.abc import Sequence

from archetype.errors import ArchetypeError, SpecError
from archetype.nn.layouts import NEW
from archetype.nn.transfer import Vocabulary
from archetype.tokenizers.token_bytes import TokenBytes
from archetype.tokenizers.tokenizer import Tokenizer


def exchange(old: Tokenizer, new: Tokenizer, old_size: int, new_size: int) -> Vocabulary:
    """Return the donor tokens that initialize each token of the new tokenizer.

    A token with the same bytes, or a special token with the same name or role, is the same. Another token is the mean
    of the tokens into which the old tokenizer cuts it (Gee 2022, Fast Vocabulary Transfer); FOCUS and WECHSEL weigh
    other tokens by their similarity in vectors that are trained in addition.

    Raises:
        SpecError: the new model has fewer tokens than its tokenizer.
    """
    if new.vocab_size > new_size:
        cause = f"{new_size} is less than the {new.vocab_size} tokens of the tokenizer"
        raise SpecError("vocab_size", cause, f"use vocab_size={new.vocab_size}")
    before, after = TokenBytes(old), TokenBytes(new)
    known, special = (
        {**each.special_tokens, "bos": each.bos, "eos": each.eos[0] if each.eos else None} for each in (old, new)
    )
    same = {id: known[name] for name, id in special.items() if id is not None and known.get(name) is not None}
    # several tokens may have the same bytes, such as a character and the byte that is a token where there is none
    by_name: dict[tuple[str, bytes], int] = {}
    by_bytes: dict[bytes, int] = {}
    for id in range(min(old.vocab_size, old_size)):
        if id not in known.values():
            by_name.setdefault((old.token(id), before(id)), id)
            if before(id) not in by_bytes or not old.token(id).startswith("<0x"):
                by_bytes[before(id)] = id
    tokens = [NEW] * new_size
    pieces: dict[int, Sequence[int]] = {}
    for id in range(new.vocab_size):
        text = after(id)
        if (token := same.get(id)) is None and id not in special.values() and text:
            token = by_name.get((new.token(id), text), by_bytes.get(text))
        if token is not None and token < old_size:
            tokens[id] = token
        elif text and (cut := [piece for piece in _cut(old, before, text) if piece < old_size]):
            pieces[id] = cut
    return Vocabulary(tokens, pieces)


def _cut(tokenizer: Tokenizer, bytes_of: TokenBytes, text: bytes) -> Sequence[int]:
    # the pieces of a text within another one, since some tokenizers put a space before a text
    for start in ("", "\n", "."):
        try:
            ids = tokenizer.encode(start + text.decode())
        except (UnicodeDecodeError, ArchetypeError):  # a part of a character, or what the tokenizer does not know
            return ()
        for first in range(len(ids)):
            if b"".join(map(bytes_of, ids[first:])) == text:
                return ids[first:]
    return ()
