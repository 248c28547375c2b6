"""Files of lines with ids, and files that get a record for each, once however often the process is killed."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from archetype.apps.cli.made_with import MADE_WITH, REMEDY, MadeWith, difference
from archetype.apps.cli.output import console
from archetype.data.tables import check_characters
from archetype.errors import DataError
from archetype.io.atomic import append_line, write_bytes
from archetype.io.files import MAX_TEXT_BYTES, json_object, read_bytes
from archetype.io.lock import locked


@dataclass
class Line:
    """One line of an input.

    Attributes:
        place: its file and line, for messages.
        id: what it is called in the output: its `id`, or the number of its line.
    """

    place: str
    id: int | str


L = TypeVar("L", bound=Line)


def read_records_with_ids(file: Path, parse: Callable[[dict[str, Any], int | str, str], L], example: str) -> list[L]:
    """The lines of a file of JSON lines; empty ones are passed over.

    Args:
        file: its lines may have an `id` each, which no two share.
        parse: makes a line of a JSON object, its id and its place.
        example: of a line, for messages.

    Raises:
        DataError: names the first line that is wrong.
    """
    lines: dict[int | str, L] = {}
    for number, text in enumerate(read_bytes(file, MAX_TEXT_BYTES).split(b"\n"), start=1):
        if text.strip():
            place = f"{file}: line {number}"
            try:
                data = json_object(text, "line")
            except DataError as error:
                raise DataError(place, error.cause, f"write one JSON object, such as {example}") from None
            if b"\\u" in text:
                check_characters(data, place)
            id = data.get("id", number)
            if not isinstance(id, int | str) or isinstance(id, bool):
                raise DataError(f"{place}: id", f"{id!r:.80} is neither a number nor a string", "choose another")
            line = parse(data, id, place)
            if (other := lines.setdefault(id, line)) is not line:
                cause = f"{id!r:.80} is also the id of {other.place.rpartition(': ')[2]}"
                raise DataError(f"{place}: id", cause, "give each line its own")
    if not lines:
        raise DataError(str(file), f"holds no {next(iter(json.loads(example)))}", f"write lines such as {example}")
    return [*lines.values()]


def finished_records(
    file: Path, lines: Sequence[L], key: str, made_with: Callable[[L], MadeWith]
) -> dict[int | str, dict[str, Any]]:
    """The records by id that the output has already; a last line that a kill has torn is removed.

    Args:
        file: the output.
        lines: of the input.
        key: which every record has.
        made_with: what the record of a line is to be made with.

    Raises:
        DataError: a record is of none of the lines, or was made with something else.
    """
    if not file.exists():
        return {}
    known, records = {line.id: line for line in lines}, dict[int | str, dict[str, Any]]()
    data = read_bytes(file, MAX_TEXT_BYTES)
    whole = data[: data.rfind(b"\n") + 1]
    for number, text in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            record = json_object(text, "line")
        except DataError:
            record = {}
        id = record.get("id")
        if not isinstance(id, int | str) or id not in known or key not in record:
            raise DataError(f"{file}: line {number}", "does not match any line of --input", REMEDY)
        if (cause := difference(record.get(MADE_WITH), made_with(known[id]))) is not None:
            raise DataError(f"{file}: line {number}", cause, REMEDY)
        records[id] = record
    if whole != data:
        write_bytes(file, whole)
    return records


def append_records(
    lines: Sequence[L],
    output: Path,
    key: str,
    made_with: Callable[[L], MadeWith],
    compute: Callable[[list[L]], Iterator[dict[str, Any]]],
    speed: Callable[[], str],
) -> tuple[int, int, int]:
    """Append a record for each line that the output does not have yet, as it is ready, below a progress bar.

    Args:
        lines: of the input.
        output: the file; what it has stays.
        key: which every record has.
        made_with: what the record of a line is made with, which is written into it.
        compute: makes the records of the lines that are left, in any order.
        speed: for the bar.

    Returns:
        How many there were before, came now, and of these failed.

    Raises:
        ArchetypeError: a line or a file cannot be used; where `compute` checks first, nothing was written then.
    """
    with locked(output.parent, f".{output.name}.lock", f"writing {output.name}"):
        finished, by_id = finished_records(output, lines, key, made_with), {line.id: line for line in lines}
        left = [line for line in lines if line.id not in finished]
        num_new, num_failed, err = 0, 0, console(stderr=True)
        bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[speed]}"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=err,
            disable=not err.is_terminal,
        )
        with bar:
            task = bar.add_task("", total=len(lines), completed=len(finished), speed="")
            for record in compute(left):
                append_line(output, json.dumps(record | {MADE_WITH: made_with(by_id[record["id"]])}))
                num_new, num_failed = num_new + 1, num_failed + ("error" in record)
                bar.update(task, advance=1, speed=speed())
    return len(finished), num_new, num_failed
