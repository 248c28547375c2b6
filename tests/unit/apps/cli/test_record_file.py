"""Lines that are appended as they are ready: what was there before, what came, and what failed are counted."""

import json
from pathlib import Path

from archetype.apps.cli.record_file import Line, append_records

MADE = {"model": "a", "input": "b", "settings": "c"}


def test_what_failed_is_counted_and_what_a_kill_has_torn_is_done_again(tmp_path: Path) -> None:
    output, lines = tmp_path / "out.jsonl", [Line(f"line {number}", number) for number in range(4)]

    def append(*ids: int) -> tuple[int, int, int]:
        records = [{"id": id, "text": "a"} | ({"error": "is too long"} if id == 2 else {}) for id in ids]
        return append_records(lines, output, "text", lambda _: MADE, lambda _: iter(records), lambda: "")

    assert append(0, 1) == (0, 2, 0)
    output.write_bytes(output.read_bytes()[:-3])
    assert append(1, 2, 3) == (1, 3, 1)
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == [0, 1, 2, 3]
