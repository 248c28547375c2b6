"""Chat templates: messages to the text that a model was trained to answer.

A template comes with a model's weights and is not trusted. It runs in Jinja's immutable sandbox, with its work counted:
whatever a template does, it does by an expression of Jinja, and each of those that can take long or make something is
compiled to a call of `Sandbox`, which adds up the bytes that were made and looks at the clock. What could make much out
of little in one step, out of reach of that count, is checked before it runs. So the limits hold in any thread and on
any system, and need neither a trace function nor a process of its own.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from pydantic import BaseModel, BeforeValidator, Field

from archetype.errors import DataError
from archetype.tokenizers.files import read_bytes, validated
from archetype.tokenizers.special_tokens import content, read_config

FILE = "chat_template.jinja"
MAX_SOURCE = 2**16  # characters; the longest published templates have some 20,000
MAX_SECONDS = 2.0
# that a template may make while it runs, beside 16 times its messages; a single step may need some twenty times as many
MAX_BYTES = 2**24
MAX_NUMBER = 100_000  # that it may multiply by, or give to a function or filter
MAX_PRODUCT = 2**26  # characters compared, or made, by one step whose work is a product of two lengths
# Methods and filters of texts: those that none needs and that make large texts of small ones, or take long; those whose
# work is the product of two lengths; and those that make a list of a text's characters.
REFUSED = {"decode", "encode", "expandtabs", "format", "format_map", "striptags", "translate"}
PRODUCTS = {"indent", "join", "lstrip", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"}
LISTS = {"batch", "groupby", "join", "list", "map", "reject", "select", "slice", "sort", "unique"}
REMOVED_FILTERS = {"format", "pprint", "striptags", "sum", "urlize", "wordwrap", "xmlattr"}

# of Python, in a template's expressions
ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)
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
            DataError: the template is wrong, refuses these messages, or needs too much time or memory.
        """
        try:
            if len(self.source) > MAX_SOURCE:
                raise TemplateError(f"has {len(self.source):,} characters, more than {MAX_SOURCE:,}")
            size = sum(sys.getsizeof(text) for message in messages for text in message.values())
            template = Sandbox(MAX_BYTES + 16 * size).from_string(self.source)
            return template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self.tokens
            )
        except TemplateError as error:
            raise DataError("chat template", _line(error), "fix the template or the messages") from None
        except ERRORS as error:
            raise DataError("chat template", f"fails with {_line(error)}", "fix the template") from None


def _default_template(value: object) -> object:
    """Of several templates by name, the default."""
    if not isinstance(value, list):
        return value
    return {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}.get("default")


class TemplateConfig(BaseModel):
    """What is read of tokenizer_config.json."""

    chat_template: Annotated[str | None, BeforeValidator(_default_template), Field(description="text")] = None


def read_template(folder: Path) -> ChatTemplate | None:
    """The template of a model folder, from chat_template.jinja or tokenizer_config.json; None where there is none.

    Raises:
        DataError: names the file that is damaged.
    """
    config = read_config(folder)
    if (folder / FILE).is_file():
        try:
            source: str | None = read_bytes(folder / FILE).decode()
        except UnicodeDecodeError as error:
            raise DataError(str(folder / FILE), f"is not UTF-8 at byte {error.start}", "download it again") from None
    else:
        source = validated(TemplateConfig, config, str(folder)).chat_template
    if source is None:
        return None
    tokens = {key: text for key, value in config.items() if key.endswith("_token") and (text := content(value))}
    return ChatTemplate(source, tokens)


class _Counted(NodeTransformer):
    """Puts a call of the sandbox around every expression that can take long or make something.

    Calls, operators, attributes and filters go through the sandbox anyway.
    """

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter("made", node)

    visit_List = visit_Dict = visit_Compare = visit_Test = _made

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._made(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("concatenated", nodes.List(node.nodes, lineno=node.lineno))

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("counted", node.iter)
        return node


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on, and changes no text."""

    tags = {"generation"}  # noqa: RUF012 as in jinja2

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Namespace(Namespace):
    def __repr__(self) -> str:
        return "<Namespace>"  # one may hold another twice, which holds another twice, ...


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with limits on time and memory, for one rendering.

    Args:
        max_bytes: that the template may make.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are computed within the limits as well
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=pass_context(lambda context, value: self._text(value)),
        )
        self._deadline = time.monotonic() + MAX_SECONDS
        self._bytes_left = max_bytes
        self.concat = self._join  # type: ignore[method-assign]
        self.filters["tojson"] = self._to_json
        filters = {name: filter for name, filter in self.filters.items() if name not in REMOVED_FILTERS}
        self.filters = {name: self._checked(name, filter) for name, filter in filters.items()}
        self.filters |= {"made": self._made, "concatenated": self._join, "counted": self._counted}
        del self.globals["lipsum"]
        self.globals |= {"namespace": _Namespace, "raise_exception": _raise, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = _Counted().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template  # type: ignore[no-any-return]

    def call(__self, __context: Any, __obj: Any, *args: Any, **options: Any) -> Any:
        name = getattr(__obj, "__name__", "")
        if name in REFUSED:
            raise SecurityError(f"{name} is not allowed")
        __self._check(name, getattr(__obj, "__self__", None), *args, *options.values())
        return __self._made(super().call(__context, __obj, *args, **options))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sequence = next((side for side in (left, right) if isinstance(side, Sized)), None)
        if operator == "+" and sequence is not None:
            self._check_size(sys.getsizeof(left) + sys.getsizeof(right))
        elif operator != "+":
            if operator == "**" or (isinstance(left, str | bytes) and operator == "%"):
                raise SecurityError(f"{operator} is not allowed")
            numbers = [side for side in (left, right) if isinstance(side, int | float)]
            if any(abs(number) > MAX_NUMBER for number in numbers):
                raise SecurityError(f"{operator} of large numbers is not allowed")
            if sequence is not None:
                self._check_size(sys.getsizeof(sequence) * int(max(numbers, default=1)))
        return self._made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        item = super().getitem(obj, argument)
        return self._made(item) if isinstance(argument, slice) else item

    def _charge(self, size: int) -> None:
        """Count bytes that are made, and look at the clock."""
        self._check_size(size)
        self._bytes_left -= size
        if time.monotonic() > self._deadline:
            raise TemplateRuntimeError(f"takes longer than {MAX_SECONDS:g} s")

    def _check_size(self, size: int) -> None:
        """Refuse to make more bytes than are left."""
        if size > self._bytes_left:
            raise TemplateRuntimeError(f"makes more than {MAX_BYTES >> 20} MiB")

    def _made(self, value: Any) -> Any:
        """Count a value, and refuse one that would be large if it were written out, its parts each time they occur."""
        self._charge(sys.getsizeof(value))
        size, parts = 0, [value]
        while parts:
            part = parts.pop()
            size += sys.getsizeof(part)
            if size > MAX_BYTES:
                raise TemplateRuntimeError(f"makes a value of more than {MAX_BYTES >> 20} MiB")
            if not len(parts) % 1024:
                self._charge(0)  # looks at the clock
            if isinstance(part, dict):
                parts += [*part, *part.values()]
            elif isinstance(part, list | tuple | set | frozenset):
                parts += part
        return value

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop."""
        for item in items:
            self._charge(16)
            yield item

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        text = str(value)
        self._charge(sys.getsizeof(text))
        return text

    def _join(self, values: Iterable[Any]) -> str:
        texts = []
        for text in map(self._text, values):
            self._charge(sys.getsizeof(text))
            texts.append(text)
        return "".join(texts)

    def _to_json(self, value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
        """JSON without the escapes for web pages that Jinja's own filter adds."""
        return self._join(json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent).iterencode(value))

    def _checked(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter, checked before and counted after."""
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            self._check(name, *args[skipped:], *options.values())
            return self._made(function(*args, **options))

        return checked

    def _check(self, name: str, subject: Any, *args: Any) -> None:
        """Refuse arguments of a method or filter that would make much out of little, or take long."""
        if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in (subject, *args)):
            raise SecurityError("a number this large is not allowed")
        if name in LISTS and any(isinstance(text, str | bytes) and len(text) > MAX_NUMBER for text in (subject, *args)):
            raise SecurityError(f"{name} of a long text is not allowed")
        if name in PRODUCTS:
            lengths = [_length(value) for value in args if not isinstance(value, int | None)]
            lengths += [value for value in args if isinstance(value, int) and name == "indent"]
            if _length(subject) * max(lengths, default=0) > MAX_PRODUCT:
                raise SecurityError(f"{name} with arguments this long is not allowed")


def _length(value: object) -> int:
    """The length of a text or collection; of what comes item by item, the most that there can be."""
    return len(value) if isinstance(value, Sized) else MAX_BYTES // 8


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    if len(format) > 100 or re.search("%[^A-Za-z%-]|%-[^A-Za-z]", format):  # such as a width of many digits
        raise SecurityError(f"the date format {format[:100]!r} is not allowed")
    return datetime.now().strftime(format)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
