"""Input lines with ids, and output files with one record per line that a restarted process completes."""

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
    """Line of an input file.

    Attributes:
        place: file and line, for messages.
        id: id in the output, which is the record's `id` or the line number.
    """

    place: str
    id: int | str


L = TypeVar("L", bound=Line)


def read_records_with_ids(file: Path, parse: Callable[[dict[str, Any], int | str, str], L], example: str) -> list[L]:
    """Read a JSON lines file, skipping empty lines.

    Args:
        file: file to read. Each line may have an `id`, which must be unique.
        parse: called with the JSON object, the id and the place of each line.
        example: valid line, shown in error messages.

    Raises:
        DataError: a line is invalid. The message names the first such line.
    """
    lines: dict[int | str, L] = {}  # by id
    for index, text in enumerate(read_bytes(file, MAX_TEXT_BYTES).split(b"\n"), start=1):
        if text.strip():
            location = f"{file}: line {index}"
            try:
                data = json_object(text, "line")
            except DataError as error:
                raise DataError(location, error.cause, f"write one JSON object, such as {example}") from None
            # only an escape can stand for half of a surrogate pair, which UTF-8 output cannot have
            if b"\\u" in text:
                check_characters(data, location)
            id = data.get("id", index)
            if not isinstance(id, int | str) or isinstance(id, bool):  # true is an int in Python
                raise DataError(
                    f"{location}: id", f"{id!r:.80} is neither a number nor a string", "use a number or a string"
                )
            line = parse(data, id, location)
            if (other := lines.setdefault(id, line)) is not line:
                cause = f"{id!r:.80} is also the id of {other.place.rpartition(': ')[2]}"
                raise DataError(f"{location}: id", cause, "use a unique id on each line")
    if not lines:
        raise DataError(str(file), f"contains no {next(iter(json.loads(example)))}", f"write lines such as {example}")
    return [*lines.values()]


def finished_records(
    file: Path, lines: Sequence[L], key: str, made_with: Callable[[L], MadeWith]
) -> dict[int | str, dict[str, Any]]:
    """Return the records already in the output, by id. Remove an incomplete last line.

    Args:
        lines: input lines.
        key: key that every record must have.
        made_with: returns the expected hashes of a line's record.

    Raises:
        DataError: a record matches no input line, or was made with another model or other settings.
    """
    if not file.exists():
        return {}
    known, records = {line.id: line for line in lines}, dict[int | str, dict[str, Any]]()
    data = read_bytes(file, MAX_TEXT_BYTES)
    complete = data[: data.rfind(b"\n") + 1]  # the process may have been killed while writing the last line
    for index, text in enumerate(complete.split(b"\n")[:-1], start=1):
        try:
            record = json_object(text, "line")
        except DataError:
            record = {}
        id = record.get("id")
        if not isinstance(id, int | str) or id not in known or key not in record:
            raise DataError(f"{file}: line {index}", "does not match any line of --input", REMEDY)
        if (cause := difference(record.get(MADE_WITH), made_with(known[id]))) is not None:
            raise DataError(f"{file}: line {index}", cause, REMEDY)
        records[id] = record  # a repeated line replaces the earlier one
    if complete != data:
        write_bytes(file, complete)
    return records


def append_records(
    lines: Sequence[L],
    output: Path,
    key: str,
    made_with: Callable[[L], MadeWith],
    compute: Callable[[list[L]], Iterator[dict[str, Any]]],
    speed: Callable[[], str],
) -> tuple[int, int, int]:
    """Append a record for each line that has no record in the output yet, with a progress bar.

    Args:
        key: key that every record must have.
        made_with: returns the hashes to write into a line's record.
        compute: yields the records of the remaining lines in any order.
        speed: returns the text shown next to the progress bar.

    Returns:
        Number of earlier, new, and failed new records.

    Raises:
        ArchetypeError: a line or a file cannot be used.
    """
    # two processes that append to one file would write each line twice
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
                # one write for each record: a killed process leaves at most an incomplete last line
                append_line(output, json.dumps(record | {MADE_WITH: made_with(by_id[record["id"]])}))
                num_new, num_failed = num_new + 1, num_failed + ("error" in record)
                bar.update(task, advance=1, speed=speed())
    return len(finished), num_new, num_failed
