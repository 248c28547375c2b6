"""SentencePiece models to which a transformers class adds steps or tokens, or whose ids the class reorders.

spiece.model belongs to T5, ALBERT and XLNet, and sentencepiece.bpe.model to XLM-RoBERTa and CamemBERT.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from archetype.errors import DataError
from archetype.io.files import read_bytes, read_json
from archetype.tokenizers.added import FLAGS, AddedToken
from archetype.tokenizers.composed import composed
from archetype.tokenizers.files import FIX
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.rebuilt import CHARSMAP, MODEL_CONFIG, STEPS, built_steps, reading_class, table
from archetype.tokenizers.sentencepiece import CONTROL, NORMAL, UNIGRAM, USER_DEFINED, Piece, SentencePieceTokenizer
from archetype.tokenizers.special_tokens import CONFIG, content, read_config


class Layout(NamedTuple):
    """Order in which a class arranges its vocabulary.

    Attributes:
        unknown: id of the unknown token.
        dropped: number of pieces at the start of the model that `first` replaces.
        first: tokens before the model's pieces, given as keys or texts, with their scores.
        last: tokens after the model's pieces.
        strips_mask: whether the mask token's match includes whitespace on its left, unless the folder says otherwise.
    """

    unknown: int
    dropped: int = 0
    first: tuple[tuple[str, float], ...] = ()
    last: tuple[str, ...] = ()
    strips_mask: bool = False


CLASSES = {
    "AlbertTokenizer": Layout(1),
    "T5Tokenizer": Layout(2),
    "XLNetTokenizer": Layout(0),
    # fairseq's dictionary: four symbols, the model's pieces without its first three, and the mask
    "XLMRobertaTokenizer": Layout(
        3, 3, (("bos_token", 0), ("pad_token", 0), ("eos_token", 0), ("unk_token", 0)), ("mask_token",)
    ),
    "CamembertTokenizer": Layout(
        3,
        1,
        (("<s>NOTUSED", 0), ("pad_token", 0), ("</s>NOTUSED", 0), ("unk_token", 0), ("<unk>NOTUSED", -100)),
        ("mask_token",),
        strips_mask=True,
    ),
}
SENTINEL, SENTINELS = "<extra_id_{}>", 100  # T5's sentinel tokens; the last one has the first id
MOST_SENTINELS = 10_000
REMEDY = "save the tokenizer as tokenizer.json with transformers"


def open_pieces(file: Path) -> HuggingFaceTokenizer:
    """Return the tokenizer of a folder with spiece.model or sentencepiece.bpe.model, as read by the folder's class.

    Raises:
        DataError: the class is not named or not known, or the file is damaged.
    """
    config, model = read_config(file.parent), file.parent / MODEL_CONFIG
    reading = reading_class(config, read_json(model) if model.is_file() else {}, False)
    name = None if reading is None else reading.name
    if name not in CLASSES:
        cause = f"is read by the class {name}" if name else "is read by a class that no file of the folder names"
        raise DataError("", f"{cause}; only the rules of {', '.join(CLASSES)} are known", REMEDY)
    pieces = SentencePieceTokenizer(read_bytes(file))
    row = table()["classes"][name]
    taken = {key: config.get(key, value) for key, value in row["defaults"].items()}
    count = config.get("extra_ids", SENTINELS)
    if type(count) is not int or not 0 <= count <= MOST_SENTINELS:
        raise DataError(f"{CONFIG}: extra_ids", f"{count!r:.80} is not an integer from 0 to {MOST_SENTINELS}", FIX)
    definition = _definition(pieces, CLASSES[name], row, taken | {"extra_ids": count})
    tokens = {key: value for key, value in taken.items() if key.endswith("_token")}
    return HuggingFaceTokenizer(json.dumps(definition).encode(), tokens | config)


def _definition(
    pieces: SentencePieceTokenizer, layout: Layout, row: Mapping[str, Any], taken: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an equivalent tokenizer.json. Refuse a model that is not Unigram or does not fit the class."""
    steps = built_steps(row, {**taken, CHARSMAP: bool(pieces.settings.charsmap)})
    vocabulary = _vocabulary(pieces.pieces, layout, taken)
    ids = {piece.text: id for id, piece in enumerate(vocabulary)}
    unknown = int(pieces.processor.unk_id()) + len(layout.first) - layout.dropped
    is_replaced = unknown < len(layout.first)  # by the class's unknown token
    if pieces.settings.kind != UNIGRAM or len(ids) < len(vocabulary) or not (is_replaced or unknown == layout.unknown):
        raise DataError("", "does not fit the class that the folder names", REMEDY)
    text = json.dumps({name: steps[name] for name in STEPS})
    map = b64encode(pieces.settings.charsmap).decode()
    added = [*_added(vocabulary, layout, row, taken, ids)]
    ids |= {token.content: token.id for token in added}
    names = {f"<{key}>": content(value) or "" for key, value in taken.items() if key.endswith("_token")}
    model = steps["model"] | {"unk_id": layout.unknown, "vocab": [[piece.text, piece.score] for piece in vocabulary]}
    own_steps = json.loads(text.replace(f'"{CHARSMAP}": "file"', f'"{CHARSMAP}": "{map}"'))
    return composed(model, added, **own_steps, post_processor=_around(row["alone"], names, ids))


def _vocabulary(pieces: list[Piece], layout: Layout, taken: Mapping[str, Any]) -> list[Piece]:
    first = [Piece(content(taken.get(name)) or name, score, NORMAL) for name, score in layout.first]
    last = [Piece(content(taken.get(name)) or name, 0.0, NORMAL) for name in layout.last]
    return [*first, *pieces[layout.dropped :], *last]


def _added(
    vocabulary: list[Piece], layout: Layout, row: Mapping[str, Any], taken: Mapping[str, Any], ids: Mapping[str, int]
) -> Iterator[AddedToken]:
    symbols = {piece.text: piece.type == CONTROL for piece in vocabulary if piece.type in (CONTROL, USER_DEFINED)}
    written = {name: value for key, value in taken.items() if key.endswith("_token") and (name := content(value))}
    named = [*written]
    if SENTINEL.format(0) in row["added"]:
        named += [SENTINEL.format(index) for index in reversed(range(taken["extra_ids"]))]
    further = iter(range(len(ids), len(ids) + len(named)))
    tokens = symbols | dict.fromkeys(named, True)
    # tokens that are not pieces get the next ids
    placed = {name: ids[name] if name in ids else next(further) for name in tokens}
    for name, id in sorted(placed.items(), key=lambda pair: pair[1]):
        flags = {"lstrip": layout.strips_mask and name == taken["mask_token"]}
        if isinstance(value := written.get(name), Mapping):
            flags |= {flag: value[flag] for flag in FLAGS if flag in value and flag != "special"}
        yield AddedToken(id, name, tokens[name], **flags)


def _around(row: Mapping[str, Any], names: Mapping[str, str], ids: Mapping[str, int]) -> dict[str, Any]:
    def sequence(key: str) -> list[dict[str, Any]]:
        return [
            {"Sequence": {"id": token, "type_id": type}}
            if token in "AB"
            else {"SpecialToken": {"id": names.get(token, token), "type_id": type}}
            for token, type in zip(row[key], row["types"][key], strict=True)
        ]

    added = {names.get(token, token) for token in row["pair"] if token not in "AB"}
    return {
        "type": "TemplateProcessing",
        "single": sequence("single"),
        "pair": sequence("pair"),
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in sorted(added)},
    }
