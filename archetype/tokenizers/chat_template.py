"""Chat templates: messages to the text that a model was trained to answer.

A template comes with a model's weights and is not trusted: it runs in Jinja's sandbox, within limits of time and memory
that are looked at with every line, and may not make large things out of small ones in a single step.
"""

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from archetype.errors import DataError
from archetype.tokenizers.reading import read_bytes
from archetype.tokenizers.special_tokens import content, read_config

if TYPE_CHECKING:
    from types import FrameType

    from jinja2.sandbox import ImmutableSandboxedEnvironment

FILE = "chat_template.jinja"
SECONDS = 2.0  # that a template may take
MEMORY = 2**29  # bytes by which it may raise the most that this process has had
LARGEST = 100_000  # number that it may multiply by or give to a method
Message = Mapping[str, str]  # its role (system, user, assistant) and its content


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the special tokens that it may name.

    Attributes:
        source: in Jinja.
        tokens: such as bos_token and eos_token, as the model's folder spells them.
    """

    source: str
    tokens: Mapping[str, str]

    def render(self, messages: list[Message]) -> str:
        """The text of a conversation, up to where the model's answer begins.

        Raises:
            DataError: the template is wrong, refuses these messages, or takes too long.
        """
        from jinja2 import TemplateError

        _environment()  # imports are not the template's
        try:
            with _limits():
                made = _compiled(self.source).render(
                    messages=messages, add_generation_prompt=True, tools=None, documents=None, **self.tokens
                )
        except TemplateError as error:
            raise DataError("chat template", _line(error), "mend the template or the messages") from None
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DataError("chat template", f"fails with {_line(error)}", "mend the template") from None
        return str(made)


def read_template(folder: Path) -> ChatTemplate | None:
    """The template of a model folder, from chat_template.jinja or tokenizer_config.json; None where there is none.

    Of several by name it is the default.
    """
    config = read_config(folder)
    found: Any = config.get("chat_template")
    if (folder / FILE).is_file():
        try:
            found = read_bytes(folder / FILE).decode()
        except UnicodeDecodeError as error:
            raise DataError(str(folder / FILE), f"is not UTF-8 at byte {error.start}", "download it again") from None
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    if found is None:
        return None
    if not isinstance(found, str):
        raise DataError(f"{folder}: chat_template", "is no text", "download tokenizer_config.json again")
    tokens = {key: text for key, value in config.items() if key.endswith("_token") and (text := content(value))}
    return ChatTemplate(found, tokens)


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> "ImmutableSandboxedEnvironment":
    from jinja2 import TemplateError, nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Answer(Extension):
        """`{% generation %}` marks what a model is trained on, and changes no text."""

        tags = {"generation"}  # noqa: RUF012 as in jinja2

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    class Sandbox(ImmutableSandboxedEnvironment):
        """Refuses also what makes large things."""

        intercepted_binops = frozenset(("*", "**", "%"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            texts = isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple)
            if operator == "**" or texts or max(abs(left), abs(right)) > LARGEST:
                raise SecurityError(f"{operator} of texts or large numbers is not allowed")
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **options: Any) -> Any:
            if getattr(__obj, "__name__", "") in ("format", "format_map"):  # to a width that stands in a text
                raise SecurityError("formatting is not allowed")
            refuse_large(*args, *options.values())
            return super().call(__context, __obj, *args, **options)

    def bounded(function: Any) -> Any:
        """The same, but for large numbers."""

        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            refuse_large(*args, *options.values())
            return function(*args, **options)

        return checked

    def refuse_large(*numbers: Any) -> None:
        if any(isinstance(number, int) and abs(number) > LARGEST for number in numbers):
            raise SecurityError("a number this large is not allowed")

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Answer])
    made.filters["tojson"] = _to_json
    made.filters.pop("format")
    made.filters |= {name: bounded(made.filters[name]) for name in ("center", "indent", "tojson")}  # to a width
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return made


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Without the escapes for web pages that Jinja's own filter adds."""
    import json

    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


@contextmanager
def _limits() -> Iterator[None]:
    """Stop Python code in this thread that takes too long or too much, at its next line."""
    from jinja2 import TemplateRuntimeError

    end, most, before = time.monotonic() + SECONDS, _peak() + MEMORY, sys.gettrace()

    def watch(frame: "FrameType", event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise TemplateRuntimeError(f"takes longer than {SECONDS:g} s")
        if _peak() > most:
            raise TemplateRuntimeError(f"takes more than {MEMORY >> 20} MiB")
        return watch

    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
