"""`archetype generate --input prompts.jsonl --output texts.jsonl`: one prompt or result per line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archetype.api.causal_lm import CausalLM
from archetype.api.text_generator import TextGenerator
from archetype.apps.cli.made_with import MadeWith, made_with, model_hash
from archetype.apps.cli.output import print_device
from archetype.apps.cli.record_file import Line, append_records, read_records_with_ids
from archetype.errors import ArchetypeError, DataError, errors_at, one_line
from archetype.generate import Engine, Request, Sampling
from archetype.machine.time_budget import time_is_over
from archetype.tokenizers.chat_template import Message

OWN_KEYS = {"id", "prompt", "messages"}


@dataclass
class Prompt(Line):
    """A prompt to continue, or a conversation to answer.

    Attributes:
        text: the prompt; None for a conversation.
        settings: fields of `Sampling`.
    """

    text: str | None
    messages: list[Message] | None
    settings: dict[str, Any]

    def ids(self, lm: TextGenerator, engine: Engine, settings: dict[str, Any]) -> list[int]:
        """Check the settings and the length of the prompt, and return its token ids.

        Raises:
            ArchetypeError: the prompt is too long, the template rejects it, or a setting is invalid.
        """
        with errors_at(self.place):
            engine.grammar(lm.settings(**settings | self.settings))  # raises if the grammar is invalid
            return engine.prompts.encode(
                (self.text or "") if self.messages is None else lm.expect(CausalLM).encode_chat([*self.messages])
            )


def read_prompts(file: Path) -> list[Prompt]:
    """Read all prompts of a file, skipping empty lines.

    Raises:
        DataError: a line is invalid. The message names the first such line.
    """
    return read_records_with_ids(file, _prompt, '{"prompt": "Once"}')


def _prompt(data: dict[str, Any], id: int | str, location: str) -> Prompt:
    text, messages = data.get("prompt"), data.get("messages")
    if (text is None) == (messages is None):
        cause = "has neither a prompt nor messages" if text is None else "has both a prompt and messages"
        raise DataError(location, cause, "use exactly one of them")
    if text is not None and not isinstance(text, str):
        raise DataError(f"{location}: prompt", f"{text!r:.80} is not a string", "write it as a JSON string")
    if messages is not None and not _is_conversation(messages):
        cause = "are not objects with a role and a content"
        raise DataError(f"{location}: messages", cause, 'write [{"role": "user", "content": "..."}]')
    settings = {name: value for name, value in data.items() if name not in OWN_KEYS}
    with errors_at(location):
        Sampling.parse(settings)
    return Prompt(location, id, text, messages, settings)


def _is_conversation(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and (isinstance(message.get("content"), str) or bool(message.get("tool_calls")))
            for message in messages
        )
    )


def generate_file(
    lm: TextGenerator, engine: Engine, prompts: list[Prompt], output: Path, settings: dict[str, Any]
) -> dict[str, int | float]:
    """Generate for the prompts that have no result in the output yet. Append each result as it finishes.

    Args:
        output: file to append to.
        settings: fields of `Sampling`. A prompt may override them.

    Returns:
        Number of earlier, new and failed results, number of tokens, and tokens per second.

    Raises:
        ArchetypeError: a prompt is too long, or a file cannot be used. Nothing is generated in this case.
    """
    model = model_hash(lm)

    def of(prompt: Prompt) -> MadeWith:
        sampling = lm.settings(**settings | prompt.settings).dump(full=True)
        return made_with(model, [prompt.text, prompt.messages], sampling)

    def compute(left: list[Prompt]) -> Iterator[dict[str, Any]]:
        for prompt in left:  # all are checked before the first is generated
            prompt.ids(lm, engine, settings)
        print_device(lm.model.device)
        yield from map(_record, _finished_requests(lm, engine, left, settings))

    def speed() -> str:
        return f"{engine.stats().tokens_per_second:,.0f} tokens/s"

    before, finished, failed = append_records(prompts, output, "finish_reason", of, compute, speed)
    stats = engine.stats()
    return {
        "before": before,
        "finished": finished,
        "failed": failed,
        "tokens": stats.generated_tokens,
        "tokens_per_second": round(stats.tokens_per_second, 1),
    }


def _finished_requests(
    lm: TextGenerator, engine: Engine, prompts: list[Prompt], settings: dict[str, Any]
) -> Iterator[Request]:
    # only a few prompts are encoded in advance: one for each slot, and as many again that wait for a slot
    upcoming, unfinished = iter(prompts), 0
    while not time_is_over():  # what is unfinished then has no record, so the next command generates it
        while unfinished < 2 * engine.slots and (prompt := next(upcoming, None)) is not None:
            ids, continues = prompt.ids(lm, engine, settings), prompt.messages is None
            engine.submit(ids, id=prompt.id, continues=continues, **settings | prompt.settings)
            unfinished += 1
        if not unfinished:
            return
        for event in engine.step():
            if event.finish_reason not in (None, "cancelled"):
                if isinstance(event.request.error, Exception) and not isinstance(event.request.error, ArchetypeError):
                    raise event.request.error  # a bug, not a fault of the prompt
                unfinished -= 1
                yield event.request


def _record(request: Request) -> dict[str, Any]:
    record = {
        "id": request.id,
        "text": request.text,
        "finish_reason": request.finish_reason,
        "prompt_tokens": len(request.prompt),
        "completion_tokens": len(request.tokens),
    }
    return record if request.error is None else record | {"error": one_line(str(request.error))}
