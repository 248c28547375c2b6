"""Tokenizer defined by a tokenizer.json, run with the `tokenizers` library."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archetype.io.atomic import write_bytes, write_json
from archetype.io.files import DAMAGED, json_object, read_bytes
from archetype.tokenizers import special_tokens
from archetype.tokenizers.added import ADDED, DECODER, FLAGS, AddedToken, read_added
from archetype.tokenizers.composed import frame
from archetype.tokenizers.definition import FILE, check_definition, pair, try_backend, without_panics
from archetype.tokenizers.files import library_errors
from archetype.tokenizers.named_tokens import add_named
from archetype.tokenizers.rebuilt import name_rebuilt
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import EncodedPair, Tokenizer, check_utf8, readable
from archetype.tokenizers.unobeyed import name_unobeyed, name_unread, said_by_definition
from archetype.tokenizers.word_cache import WordCache, word_pattern

if TYPE_CHECKING:
    from tokenizers import AddedToken as LibraryToken

BYTE = re.compile(r"<0x[+0-9A-Fa-f][0-9A-Fa-f]>")  # byte token of decoders with ByteFallback
LONG = 2**12  # characters; longer texts are encoded word by word
INCOMPLETE = "is the tokenizer's file complete?"


class HuggingFaceTokenizer(Tokenizer):
    """Tokenizer defined by a tokenizer.json: BPE, WordPiece, Unigram or WordLevel. `kind` names its model.

    Args:
        data: contents of the tokenizer.json.
        config: contents of tokenizer_config.json (None: the tokenizer is not yet saved in a folder).
        added: tokens listed in the folder's other files.

    Raises:
        DataError: the file is damaged, or the configuration names a token that the vocabulary lacks.
    """

    kind = "hugging_face"
    files = (FILE,)
    other_names = ("*.json",)
    encodes_special_tokens = True

    @classmethod
    def open(cls, file: Path) -> Tokenizer:
        config = special_tokens.read_config(file.parent)
        tokenizer = cls(read_bytes(file), config, read_added(file.parent, config))
        name_rebuilt(tokenizer, file.parent)
        return tokenizer

    def __init__(self, data: bytes, config: Mapping[str, Any] | None = None, added: Sequence[AddedToken] = ()) -> None:
        self._data, self._listed = data, added
        self.config = dict(config or {})
        self.definition = json_object(data, FILE)
        check_definition(self.definition)
        from tokenizers import Tokenizer as Backend

        with library_errors(FILE, "cannot be read", DAMAGED):
            with without_panics():
                self.backend = Backend.from_str(data.decode("utf-8-sig"))
            # callers of `encode` expect neither truncation nor padding, which a file may ask for
            self.backend.no_truncation()
            self.backend.no_padding()
            add_named(self.backend, self.config, added)
            self._vocab_size = 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
            present = self.backend.get_added_tokens_decoder()
            try_backend(self.backend)
            name_unread(self.definition, self.backend)
            if self.definition["model"].get("dropout"):
                self.backend.model.dropout = None  # BPE dropout is for training only
        self.definition["added_tokens"] = [
            {"id": id, "content": token.content} | {flag: getattr(token, flag) for flag in FLAGS}
            for id, token in sorted(present.items())
        ]
        self._special = {token.content: id for id, token in present.items() if token.special}
        self.reaching = tuple(token.content for token in present.values() if token.content and _reaches(token))
        self._set_special()
        self._opened = None if config is None else special_tokens.ends_of(self)
        model = model_type(self._model)
        names = {"BPE": "byte_bpe" if self.is_byte_level else "bpe", "WordLevel": "words"}
        self.kind = names.get(model, model.lower())
        cleans = "clean_up_tokenization_spaces"
        if model == "BPE":  # pieces include spaces
            cleans += "_for_bpe_even_though_it_will_corrupt_output"
        self._cleans = bool(self.config.get("clean_up_tokenization_spaces") and self.config.get(cleans))
        if self.config:
            ends = any(id in self.eos for id in self._special_ids_around_text[1][-1:])
            name_unobeyed(self.config, said_by_definition(self.definition, self.adds_bos, ends), self._special)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def special_tokens(self) -> dict[str, int]:
        return dict(self._special)

    @property
    def symbols(self) -> list[str]:
        return [token.content for token in self.backend.get_added_tokens_decoder().values() if not token.special]

    @cached_property
    def is_byte_level(self) -> bool:
        # the decoder knows: pieces are written in GPT-2's byte alphabet
        return '"ByteLevel"' in json.dumps(self.definition.get("decoder"))

    @property
    def merges(self) -> list[tuple[str, str]]:
        return [(first, second) for first, second in map(pair, self._model.get("merges") or [])]

    def encode(self, text: str) -> list[int]:
        if len(text) >= LONG and self._word_cache is not None:
            return self._word_cache.encode(text)
        return self._encode(text)

    @cached_property
    def _word_cache(self) -> WordCache | None:
        pattern = word_pattern(self.definition)
        added = [token.content for token in self.backend.get_added_tokens_decoder().values()]
        return None if pattern is None else WordCache(pattern, added, self.reaching, self._encode)

    def _encode(self, text: str) -> list[int]:
        with library_errors("text", "cannot be encoded", INCOMPLETE):
            return list(self.backend.encode(check_utf8(text), add_special_tokens=False).ids)

    def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
        before, after = self._special_ids_around_text
        first = [self.bos] if self._adds_further_bos and self.bos is not None else []
        return [*first, *before, *ids, *after]

    @property
    def _adds_further_bos(self) -> bool:
        # files of other programs may ask for a bos that the post-processor does not add
        return self.adds_bos and self.bos not in self._special_ids_around_text[0]

    @cached_property
    def _special_ids_around_text(self) -> tuple[list[int], list[int]]:
        # found by encoding "a"; the library's post-processors have no common interface for them
        plain = self.encode("a")
        with library_errors("text", "cannot be encoded", INCOMPLETE):
            whole = list(self.backend.encode("a", add_special_tokens=True).ids)
        starts = [start for start in range(len(whole)) if whole[start : start + len(plain)] == plain]
        first = starts[0] if plain and starts else len(whole)
        return whole[:first], whole[first + len(plain) :]

    def encode_pair(self, first: str, second: str) -> EncodedPair:
        with library_errors("text", "cannot be encoded", INCOMPLETE):
            row = self.backend.encode(check_utf8(first), check_utf8(second), add_special_tokens=True)
        second_text = [position for position, text in enumerate(row.sequence_ids) if text == 1]
        return EncodedPair(list(row.ids), list(row.type_ids), {at: row.offsets[at] for at in second_text})

    def decode(self, ids: Sequence[int]) -> str:
        known = [id for id in ids if 0 <= id < self._vocab_size]
        with library_errors("ids", "cannot be decoded", INCOMPLETE):
            text = str(self.backend.decode(known, skip_special_tokens=True))
        return cleaned(text) if self._cleans else text

    def token(self, id: int) -> str:
        return self.readable(self._piece(id))

    def readable(self, piece: str) -> str:
        return readable(to_bytes(piece) if self.is_byte_level else piece)

    def save(self, folder: Path) -> None:
        # the bytes that were read, unless the file must also add bos
        data = self._data
        if self._adds_further_bos and self.bos is not None:
            steps = [self.definition.get("post_processor"), frame({self._piece(self.bos): self.bos}, {})]
            processor = {"type": "Sequence", "processors": [step for step in steps if step is not None]}
            definition = json_object(data, FILE) | {"post_processor": processor}
            data = json.dumps(definition, ensure_ascii=False).encode("utf-8", "surrogatepass")
        write_bytes(folder / FILE, data)
        if self._listed and DECODER not in self.config:
            write_json(folder / ADDED, {token.content: token.id for token in self._listed})
        special_tokens.write_config(folder, self, self.config, self._piece, self._opened)

    def stream(self) -> TextStream:
        steps = [str(step.get("type")) for step in _flat(self.definition.get("decoder") or {})]
        joined = next((n for n, kind in enumerate(steps) if kind in ("Fuse", "ByteLevel")), len(steps))
        # CTC merges neighbours and cleaning works across tokens, so streaming must wait for the whole text; so must a
        # step after pieces are joined, except Strip, which changes only the start
        if self._cleans or "CTC" in steps or any(kind not in ("Fuse", "Strip") for kind in steps[joined + 1 :]):
            return TextStream(self.decode, incomplete=lambda id: True)
        if "ByteFallback" in steps:  # one invalid byte makes a whole run of bytes invalid
            return TextStream(self.decode, incomplete=self._continues_bytes)
        return TextStream(self.decode)

    def _continues_bytes(self, id: int) -> bool:
        # special tokens do not end a run of <0x..> tokens
        piece = self._piece(id)
        return BYTE.fullmatch(piece) is not None or piece in self._special or not piece

    def words(self, texts: Iterable[str]) -> Counter[str]:
        """Count the words of a text, which are never merged with each other. Special tokens are left out."""
        counts: Counter[str] = Counter()
        for text in texts:
            for part in without(self._special, text):
                counts.update(self._words(part))
        return counts

    def _words(self, text: str) -> list[str]:
        backend = self.backend
        text = backend.normalizer.normalize_str(text) if backend.normalizer is not None else text
        if backend.pre_tokenizer is None:
            return [text]
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]

    def _piece(self, id: int) -> str:
        return (self.backend.id_to_token(id) or "") if 0 <= id < self._vocab_size else ""

    @property
    def _model(self) -> Mapping[str, Any]:
        return self.definition["model"]

    def _set_special(self) -> None:
        special_tokens.set_known(self, self._special)
        if (leading := _leading_id(self.definition.get("post_processor"))) is not None:
            self.bos = leading
        special_tokens.apply_config(self, self.config, self.backend.token_to_id)
        # add_bos_token is ignored, as transformers 5 obeys it only without a tokenizer.json
        self.adds_bos = self.bos in self._special_ids_around_text[0]


def cleaned(text: str) -> str:
    """Remove spaces before punctuation and contractions, with the same replacements as transformers 5.23."""
    for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(spaced, spaced.strip())
    return text


def _reaches(token: "LibraryToken") -> bool:
    # a match may depend on the text after a line break, where long texts are cut
    looks_ahead = token.single_word and token.content.endswith("\n")
    return token.lstrip or looks_ahead or re.search(r"\n\S", token.content) is not None


def model_type(model: Mapping[str, Any]) -> str:
    """Return BPE, WordPiece, Unigram or WordLevel. Older files, which state no type, are recognized by their keys."""
    marks = {"merges": "BPE", "max_input_chars_per_word": "WordPiece", "unk_id": "Unigram"}
    return str(model.get("type") or next((type for key, type in marks.items() if key in model), "WordLevel"))


@cache
def byte_of_character() -> dict[str, int]:
    """Return the byte for each character in GPT-2's byte-level alphabet (Radford et al. 2019, released code).

    Printable bytes of Latin-1 map to themselves; all other bytes are numbered from U+0100.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in sorted(printable)} | {chr(256 + n): byte for n, byte in enumerate(rest)}


def to_bytes(piece: str) -> bytes:
    # a piece outside the alphabet, such as an added token, is ordinary text
    alphabet = byte_of_character()
    if all(character in alphabet for character in piece):
        return bytes(alphabet[character] for character in piece)
    return piece.encode()


def _flat(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if step.get("type") != "Sequence":
        return [step]
    return [inner for part in step["decoders"] for inner in _flat(part)]


def without(special: Iterable[str], text: str) -> list[str]:
    """Split a text at spelled-out special tokens, which are dropped."""
    names = [re.escape(name) for name in special if name]
    return [part for part in re.split("|".join(names), text) if part] if names else [text]


def _leading_id(processor: Mapping[str, Any] | None) -> int | None:
    match processor:
        case {"type": "Sequence", "processors": [*inner]}:
            return next((id for id in map(_leading_id, inner) if id is not None), None)
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, int(id)]}:
            return id
        case {"single": [{"SpecialToken": {"id": name}}, *_], "special_tokens": special}:
            ids = special.get(name, {}).get("ids", [])
            return ids[0] if ids else None
    return None


KINDS = (HuggingFaceTokenizer,)
