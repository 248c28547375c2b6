"""The bytes that a grammar takes are those that its process has allocated."""

import ctypes
import json
import sys

from archetype.confined.grammars import PER_CHARACTER, allocated, answer

SCHEMA = json.dumps({"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(40)}})


def test_bytes_are_counted_where_the_system_says_them() -> None:
    says = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallinfo2")  # the GNU C library does
    before, block, after = allocated(), bytearray(2**24), allocated()
    assert (before is not None) == (after is not None) == says
    fault, taken = answer("json_schema", SCHEMA, None)
    assert fault is None and taken >= len(SCHEMA)
    if before is not None and after is not None:
        others = len(block) / 100  # what the process takes or gives back meanwhile
        assert abs(after - before - len(block)) < others and taken < PER_CHARACTER * len(SCHEMA) / 4
