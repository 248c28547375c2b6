"""What a tokenizer.json may not ask of the library, which would panic, end the process or fill the memory."""

import base64
import json
from typing import Any

import pytest

from archetype.errors import DataError
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

VOCAB = {character: id for id, character in enumerate("abcdefghijklmnopqrstuvwxyz ")}
MODEL = {"type": "BPE", "vocab": VOCAB, "merges": []}


def definition(**parts: Any) -> bytes:
    return json.dumps({"model": MODEL, "added_tokens": [], **parts}).encode()


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def charsmap(units: list[int], texts: bytes = b"") -> dict[str, Any]:
    units = units + [0] * (256 - len(units))
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    data = len(trie).to_bytes(4, "little") + trie + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def sequence(step: dict[str, Any], times: int) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [step] * times}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 30,
            "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"], "special_tokens": {}}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "doubling": ({"normalizer": sequence(replace("h", "hh"), 20)}, "normalizer: can make a text 1,048,576 times"),
    "doubling in sequences": (
        {"normalizer": sequence(sequence(replace("h", "hh"), 4), 5)}, "normalizer: can make a text 1,048,576 times"),
    "a pattern that matches nothing": ({"normalizer": sequence(replace("", "xx", "Regex"), 9)}, "can make a text"),
    "a long beginning": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**5}}, "normalizer: has 100,0"),
    "a long pattern": ({"pre_tokenizer": split("|".join(["a" * 9] * 10**4))}, "pre_tokenizer: has 100,0"),
    "a text 30 times": ({"post_processor": TEMPLATE}, "post_processor: can make a text"),
    "a pattern without end": ({"pre_tokenizer": split("(a+)+$")}, "cannot be used: Onig"),
    "pieces of no length": ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "cannot be used: chunk size"),
    "more stripped than there is": (
        {"decoder": {"type": "Strip", "content": "a", "start": 10**18, "stop": 10**18}}, "cannot be used: index"),
    "a map cut short": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "//8="}}, "is damaged"),
    "a map larger than its file": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////fwAA"}}, "is damaged"),
    "a map of numbers": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": [1]}}, "is damaged"),
    "a map that leaves its table": ({"normalizer": charsmap([0xFFFFFFFF])}, "is damaged"),
    "a map that leaves its texts": ({"normalizer": charsmap([256 | 1 << 10, 2**31 + 9], b"abc\0")}, "is damaged"),
    "a map that cuts a character": ({"normalizer": charsmap([256 | 1 << 10, 2**31 + 1], b"\xc3\xa9\0")}, "is damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_cannot_stand_is_refused_when_it_is_opened(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    parts, cause = REFUSED[name]
    with pytest.raises(DataError) as caught:
        HuggingFaceTokenizer(definition(**parts))
    assert cause in str(caught.value) and "tokenizer.json" in str(caught.value)
    assert capfd.readouterr().err == ""  # the library prints its panics


def test_what_published_files_ask_is_granted() -> None:
    """Marks written differently, spaces as ▁, and a map that leaves a text as it is."""
    steps = [replace("``", '"'), replace("''", '"'), replace(" {2,}", "▁", "Regex"), replace(r"\s+", " ", "Regex"),
             {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"), charsmap([0], b"a\0")]  # fmt: skip
    tokenizer = HuggingFaceTokenizer(definition(normalizer={"type": "Sequence", "normalizers": steps}))
    assert tokenizer.encode("abc") == [0, 1, 2]
