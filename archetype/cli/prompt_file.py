"""`archetype generate --input prompts.jsonl --output texts.jsonl`: a prompt a line, and a line for each text."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
class Prompt:
    """One line of the input.

    Attributes:
        place: its file and line, for messages.
        id: what it is called in the output: its `id`, or the number of its line.
        text: to be continued; None where there are `messages` to be answered.
        messages: a conversation.
        settings: fields of `Sampling`.
    """

    place: str
    id: int | str
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
    prompts: dict[int | str, Prompt] = {}
    for number, line in enumerate(read_bytes(file, MAX_TEXT_BYTES).split(b"\n"), start=1):
        if line.strip():
            prompt = _prompt(line, number, f"{file}: line {number}")
            if (other := prompts.setdefault(prompt.id, prompt)) is not prompt:
                cause = f"{prompt.id!r:.80} is also the id of {other.place.rpartition(': ')[2]}"
                raise DataError(f"{prompt.place}: id", cause, "give each line its own")
    if not prompts:
        raise DataError(str(file), "holds no prompt", 'write lines such as {"prompt": "Once"}')
    return [*prompts.values()]


def _prompt(line: bytes, number: int, place: str) -> Prompt:
    try:
        data = json_object(line, "line")
    except DataError as error:
        raise DataError(place, error.cause, 'write one JSON object, such as {"prompt": "Once"}') from None
    id, text, messages = data.get("id", number), data.get("prompt"), data.get("messages")
    if not isinstance(id, int | str) or isinstance(id, bool):
        raise DataError(f"{place}: id", f"{id!r:.80} is neither a number nor a string", "choose another")
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


def finished_ids(file: Path, prompts: list[Prompt]) -> set[int | str]:
    """The ids of the lines that the output has already; a last line that a kill has torn is removed.

    Raises:
        DataError: a line is not the output of any of the prompts.
    """
    if not file.exists():
        return set()
    known, ids = {prompt.id for prompt in prompts}, set()
    data = read_bytes(file, MAX_TEXT_BYTES)
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            record = json_object(line, "line")
        except DataError:
            record = {}
        id = record.get("id")
        if not isinstance(id, int | str) or id not in known or "finish_reason" not in record:
            raise DataError(f"{file}: line {number}", "is no text of this input", "choose another --output")
        ids.add(id)
    if whole != data:
        write_bytes(file, whole)
    return ids


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
    with locked(output.parent, f".{output.name}.lock", f"writing {output.name}"):
        finished = finished_ids(output, prompts)
        left = [prompt for prompt in prompts if prompt.id not in finished]
        for prompt in left:
            prompt.ids(lm, engine, settings)
        failed, err = 0, console(stderr=True)
        bar = Progress(
            MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TextColumn("left"), TimeRemainingColumn(compact=True), console=err, disable=not err.is_terminal,
        )  # fmt: skip
        with bar:
            task = bar.add_task("", total=len(prompts), completed=len(finished), rate=0.0)
            for request in _finished_requests(lm, engine, left, settings):
                append_line(output, json.dumps(_record(request)))
                failed += request.error is not None
                bar.update(task, advance=1, rate=engine.stats().tokens_per_second)
    stats = engine.stats()
    return {
        "before": len(finished), "finished": stats.finished, "failed": failed, "tokens": stats.generated_tokens,
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
