"""`archetype generate --input prompts.jsonl --output texts.jsonl`: a prompt a line, and a line for each text.

What reads lines with ids and appends a record for each, once however often the process is killed, is `translate`'s too.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from archetype.cli.output import console
from archetype.errors import ArchetypeError, DataError, one_line
from archetype.generate import Engine, Request, Sampling
from archetype.io.atomic import append_line, write_bytes
from archetype.io.files import MAX_TEXT_BYTES, json_object, read_bytes
from archetype.language_model import LanguageModel
from archetype.runs.lock import locked

OWN_KEYS = {"id", "prompt", "messages"}


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


@dataclass
class Prompt(Line):
    """A text to be continued, or a conversation to be answered.

    Attributes:
        text: to be continued; None where there are `messages` to be answered.
        messages: a conversation.
        settings: fields of `Sampling`.
    """

    text: str | None
    messages: list[dict[str, str]] | None
    settings: dict[str, Any]

    def ids(self, lm: LanguageModel, engine: Engine, settings: dict[str, Any]) -> list[int]:
        """Its tokens, once they and the settings are checked.

        Raises:
            ArchetypeError: it is too long, the model's template refuses it, or a grammar is wrong.
        """
        try:
            engine.grammar(lm.settings(**settings | self.settings))
            return engine.encode((self.text or "") if self.messages is None else lm.encode_chat([*self.messages]))
        except ArchetypeError as error:
            raise error.at(self.place) from None


def read_prompts(file: Path) -> list[Prompt]:
    """All prompts of a file; empty lines are passed over.

    Raises:
        DataError: names the first line that is wrong.
    """
    return read_records_with_ids(file, _prompt, '{"prompt": "Once"}')


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


def _prompt(data: dict[str, Any], id: int | str, place: str) -> Prompt:
    text, messages = data.get("prompt"), data.get("messages")
    if (text is None) == (messages is None):
        cause = "has neither a prompt nor messages" if text is None else "has both a prompt and messages"
        raise DataError(place, cause, "give one of them")
    if text is not None and not isinstance(text, str):
        raise DataError(f"{place}: prompt", f"{text!r:.80} is not a text", "write it as a JSON string")
    if messages is not None and not _is_conversation(messages):
        cause = "are not objects with a role and a content, both texts"
        raise DataError(f"{place}: messages", cause, 'write [{"role": "user", "content": "..."}]')
    settings = {name: value for name, value in data.items() if name not in OWN_KEYS}
    try:
        Sampling.parse(settings)
    except ArchetypeError as error:
        raise error.at(place) from None
    return Prompt(place, id, text, messages, settings)


def _is_conversation(messages: Any) -> bool:
    return isinstance(messages, list) and bool(messages) and all(
        isinstance(message, dict) and {"role", "content"} <= message.keys()
        and all(isinstance(value, str) for value in message.values())
        for message in messages
    )  # fmt: skip


def finished_records(file: Path, lines: Sequence[Line], key: str) -> dict[int | str, dict[str, Any]]:
    """The records by id that the output has already; a last line that a kill has torn is removed.

    Args:
        file: the output.
        lines: of the input.
        key: which every record has.

    Raises:
        DataError: a record is of none of the lines.
    """
    if not file.exists():
        return {}
    known, records = {line.id for line in lines}, dict[int | str, dict[str, Any]]()
    data = read_bytes(file, MAX_TEXT_BYTES)
    whole = data[: data.rfind(b"\n") + 1]
    for number, text in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            record = json_object(text, "line")
        except DataError:
            record = {}
        id = record.get("id")
        if not isinstance(id, int | str) or id not in known or key not in record:
            raise DataError(f"{file}: line {number}", "is no text of this input", "choose another --output")
        records[id] = record
    if whole != data:
        write_bytes(file, whole)
    return records


def append_records(
    lines: Sequence[L], output: Path, key: str, compute: Callable[[list[L]], Iterator[dict[str, Any]]],
    speed: Callable[[], str],
) -> tuple[int, int, int]:  # fmt: skip
    """Append a record for each line that the output does not have yet, as it is ready, below a progress bar.

    Args:
        lines: of the input.
        output: the file; what it has stays.
        key: which every record has.
        compute: makes the records of the lines that are left, in any order.
        speed: for the bar.

    Returns:
        How many there were before, came now, and of these failed.

    Raises:
        ArchetypeError: a line or a file cannot be used; where `compute` checks first, nothing was written then.
    """
    with locked(output.parent, f".{output.name}.lock", f"writing {output.name}"):
        finished = finished_records(output, lines, key)
        left = [line for line in lines if line.id not in finished]
        num_new, num_failed, err = 0, 0, console(stderr=True)
        bar = Progress(
            MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[speed]}"), TextColumn("left"),
            TimeRemainingColumn(compact=True), console=err, disable=not err.is_terminal,
        )  # fmt: skip
        with bar:
            task = bar.add_task("", total=len(lines), completed=len(finished), speed="")
            for record in compute(left):
                append_line(output, json.dumps(record))
                num_new, num_failed = num_new + 1, num_failed + ("error" in record)
                bar.update(task, advance=1, speed=speed())
    return len(finished), num_new, num_failed


def generate_file(
    lm: LanguageModel, engine: Engine, prompts: list[Prompt], output: Path, settings: dict[str, Any]
) -> dict[str, int | float]:
    """Continue the prompts that the output does not have yet; append a line for each as it finishes.

    Args:
        lm: the model.
        engine: of it.
        prompts: of the input.
        output: the file; what it has stays.
        settings: fields of `Sampling` that a prompt may replace.

    Returns:
        How many were done before, now, and failed; tokens, and tokens a second.

    Raises:
        ArchetypeError: a prompt is too long, or a file cannot be used; nothing was generated then.
    """

    def compute(left: list[Prompt]) -> Iterator[dict[str, Any]]:
        for prompt in left:
            prompt.ids(lm, engine, settings)
        yield from map(_record, _finished_requests(lm, engine, left, settings))

    def speed() -> str:
        return f"{engine.stats().tokens_per_second:,.0f} tokens/s"

    before, _, failed = append_records(prompts, output, "finish_reason", compute, speed)
    stats = engine.stats()
    return {
        "before": before, "finished": stats.finished, "failed": failed, "tokens": stats.generated_tokens,
        "tokens_per_second": round(stats.tokens_per_second, 1),
    }  # fmt: skip


def _finished_requests(
    lm: LanguageModel, engine: Engine, prompts: list[Prompt], settings: dict[str, Any]
) -> Iterator[Request]:
    """Each request as it ends; of those to come, few are encoded in advance."""
    upcoming, unfinished = iter(prompts), 0
    while True:
        while unfinished < 2 * engine.slots and (prompt := next(upcoming, None)) is not None:
            engine.submit(prompt.ids(lm, engine, settings), id=prompt.id, **settings | prompt.settings)
            unfinished += 1
        if not unfinished:
            return
        for event in engine.step():
            if event.finish_reason is not None:
                if isinstance(event.request.error, Exception) and not isinstance(event.request.error, ArchetypeError):
                    raise event.request.error  # a fault of ours
                unfinished -= 1
                yield event.request


def _record(request: Request) -> dict[str, Any]:
    """What the output says of a request."""
    record = {
        "id": request.id, "text": request.text, "finish_reason": request.finish_reason,
        "prompt_tokens": len(request.prompt), "completion_tokens": len(request.tokens),
    }  # fmt: skip
    return record if request.error is None else record | {"error": one_line(str(request.error))}
