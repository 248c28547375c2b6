"""`archetype chat MODEL`: a conversation in the terminal."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.apps.cli.fields import takes, values_of, with_groups
from archetype.apps.cli.generate import OWN, SAMPLING
from archetype.apps.cli.options import Json, Model, Opening, StateDtype, Template
from archetype.apps.cli.output import print_device, print_json_line, show_warnings
from archetype.errors import ArchetypeError, DataError, nearest
from archetype.settings.generation import Sampling

if TYPE_CHECKING:
    from archetype.api.causal_lm import CausalLM
    from archetype.generate import Engine
    from archetype.tokenizers.chat_template import Message

CHOSEN = ("max_new_tokens", *OWN, "seed", "stop", "ignore_eos")
SETTINGS = {name: field for name, field in SAMPLING.items() if name in CHOSEN}
SECTIONS = {
    "Conversation": ("system", "template"),
    "Text": ("max_new_tokens", "stop", "ignore_eos"),
    "Sampling": (*OWN, "seed"),
}
COMMANDS = {
    "/reset": "clear the conversation and keep the system message",
    "/system TEXT": "restart the conversation with this system message, or without one",
    "/save FILE": "write the conversation to a new file for train --chat",
    "/help": "list these commands",
}
ENDS = "Ctrl-C stops an answer, Ctrl-D exits."


@with_groups
@takes(SETTINGS, dict.fromkeys(OWN, "the model's"))
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    template: Template = None,
    state_dtype: StateDtype = None,
    *,
    opening: Opening,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Chat with a model in the terminal; each line is a message.

    /reset clears the conversation, /system TEXT restarts it with a system message, /save FILE saves it for
    `train --chat`. Ctrl-C stops an answer, Ctrl-D exits. Messages can also be piped to standard input.
    """
    show_warnings()
    settings = values_of(SETTINGS, options)
    from archetype.api.causal_lm import CausalLM
    from archetype.generate import Engine

    Sampling.parse(settings)  # a wrong setting is refused before a large model is read
    lm = CausalLM.load(model, **opening.settings, state_dtype=state_dtype)
    if template is not None:
        lm.use_template(template)
    if lm.template is None:
        remedy = "pass a template with --chat-template, or fine-tune with `archetype train --chat`"
        raise DataError(str(model), "has no chat template, so it is not a chat model", remedy)
    talk = Conversation(lm, Engine(lm, slots=1), settings, system, as_json)  # one slot
    print_device(lm.model.device)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"Commands: {', '.join(COMMANDS)}. {ENDS}", file=sys.stderr)
    for line in _typed_lines() if is_terminal else _lines():
        try:
            talk.take(line)
        except ArchetypeError as error:
            # a script has to notice the error by the exit status 2; a person continues after it
            if not is_terminal:
                raise
            print(f"archetype: {error}", file=sys.stderr)


class Conversation:
    """Message history of a chat, which handles each input line.

    Args:
        engine: the model's engine. Its prefix cache keeps the earlier turns.
        settings: fields of `Sampling`.
        as_json: print each answer as an object on one line, instead of as it is generated.

    Raises:
        ArchetypeError: the model's template rejects the system message.
    """

    def __init__(
        self, lm: "CausalLM", engine: "Engine", settings: dict[str, Any], system: str | None, as_json: bool = False
    ) -> None:
        self._lm, self._engine, self._settings, self._as_json = lm, engine, settings, as_json
        self.messages: list[Message] = []
        self._begin(system)

    def take(self, line: str) -> None:
        """Run a command, or respond to a message.

        Raises:
            ArchetypeError: the command is unknown, or the conversation is too long. The conversation stays unchanged.
        """
        command, _, rest = line.strip().partition(" ")
        match command:
            case "":
                return
            case "/help":
                print(*(f"{name:14} {meaning}" for name, meaning in COMMANDS.items()), sep="\n", file=sys.stderr)
            case "/reset":
                self._begin(self._system)
            case "/system":
                self._begin(rest.strip() or None)
            case "/save":
                self._save(rest.strip())
            case _ if command.startswith("/"):
                known = [name.partition(" ")[0] for name in COMMANDS]
                raise DataError(command, "is not a command", nearest(command, known))
            case _:
                self._answer(line)

    def _begin(self, system: str | None) -> None:
        messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._lm.encode_chat([*messages, {"role": "user", "content": "Hi"}])  # a template may refuse it
        self._system, self.messages = system, messages

    def _answer(self, text: str) -> None:
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        ids = self._lm.encode_chat(messages)
        # the answer is a text of its own: it does not continue the last word of the prompt
        request = self._engine.submit(ids, continues=False, **self._settings)
        with _on_interrupt(request.cancel):
            for piece in request.pieces():
                if not self._as_json:
                    print(piece, end="", flush=True)
        if self._as_json:
            about = {"text": request.text, "finish_reason": request.finish_reason}
            print_json_line({"message": text} | about | {"completion_tokens": len(request.tokens)})
        else:
            print(flush=True)
        # only now, so that an error leaves the conversation unchanged; an interrupted answer stays as far as it got
        self.messages = [*messages, {"role": "assistant", "content": request.text}]

    def _save(self, name: str) -> None:
        from archetype.io.atomic import write_bytes

        if not name or Path(name).exists():
            raise DataError(name or "/save", "already exists" if name else "needs a file", "name a new file")
        try:
            write_bytes(Path(name), json.dumps({"messages": self.messages}, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise DataError(name, f"cannot be written: {error.strerror}", "name another file") from None
        print(f"{name}: {len(self.messages)} messages", file=sys.stderr)


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C ends the program
        stop()

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _typed_lines() -> Iterator[str]:
    with suppress(ImportError):  # some builds of Python have no readline, so no line editing
        import readline  # noqa: F401  # input() uses it once it is imported
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def _lines() -> Iterator[str]:
    """Yield the lines of a file or a pipe as they arrive."""
    from archetype.io.text import decode_text

    for line in sys.stdin.buffer:
        yield decode_text(line, "standard input").rstrip("\r\n")
