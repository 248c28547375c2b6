"""Jinja's sandbox with limits on time and memory, for templates that come with a model's weights and are not trusted.

Every step (a call, a filter, an operator, a loop's next item, a piece of output) goes through `_step` or `_count`. The
first bounds what a step can make by what goes into it: no builtin of Python or Jinja that is left makes more, or works
longer, than the product of its two largest arguments. The second takes what came out from a budget, item by item, and
looks at the clock. So the limits hold in any thread and on any system, for whatever filters and methods there are.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from datetime import datetime
from functools import partial, update_wrapper
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateRuntimeError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 3.0  # of this thread's processor time, in which a large program's collection of garbage may fall
MAX_BYTES = 2**21  # that a template may make, beside 16 times its messages
MAX_WORK = 2**24  # product of the sizes of a step's two largest arguments, beside 64 times the messages
MAX_NUMBER = 100_000  # that it may multiply by, or give to a method or filter
# What a text says, and not its size, decides what these make or how long they take.
REFUSED_METHODS = {"decode", "encode", "format", "format_map", "striptags", "translate"}
REFUSED_FILTERS = {"format", "pprint", "striptags", "sum", "urlize", "wordwrap"}


class _Counted(NodeTransformer):
    """Puts a call of the sandbox around every expression that makes something, and around the items of every loop.

    Calls, operators, attributes and filters go through the sandbox anyway.
    """

    def _count(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_count", node)

    visit_List = visit_Dict = visit_Compare = visit_Test = _count

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._count(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_concatenate", nodes.List(node.nodes, lineno=node.lineno))

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("_items", node.iter)
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
        size: bytes of the messages.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, size: int) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are computed within the limits as well
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=pass_context(lambda context, value: self._text(value)),
        )
        self._deadline = time.thread_time() + MAX_SECONDS
        self._largest = self._bytes_left = MAX_BYTES + 16 * size
        self._max_work = MAX_WORK + 64 * size
        self.concat = self._concatenate  # type: ignore[method-assign]
        filters = self.filters | {"tojson": self._to_json}
        self.filters = {name: self._bounded(f) for name, f in filters.items() if name not in REFUSED_FILTERS}
        for name in ("default", "d"):  # returns one of its arguments, however long they are
            self.filters[name] = filters[name]
        self.filters |= {"_count": self._count, "_concatenate": self._concatenate, "_items": self._items}
        del self.globals["lipsum"]
        self.globals |= {"namespace": _Namespace, "raise_exception": _raise, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = _Counted().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template  # type: ignore[no-any-return]

    def call(__self, __context: Any, __obj: Any, *args: Any, **options: Any) -> Any:
        if getattr(__obj, "__name__", "") in REFUSED_METHODS:
            raise SecurityError(f"{__obj.__name__} is not allowed")
        call = partial(super().call, __context, __obj, *args, **options)
        subject = getattr(__obj, "__self__", None)
        is_method = isinstance(subject, Collection | int | float)  # and not a macro, whose own steps are counted
        return __self._step(call, subject, *args, *options.values()) if is_method else __self._count(call())

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str | bytes)):
            raise SecurityError(f"{operator} is not allowed")
        apply = partial(super().call_binop, context, operator, left, right)
        return self._count(apply()) if operator == "+" else self._step(apply, left, right)  # a sum is no product

    def getitem(self, obj: Any, argument: Any) -> Any:
        item = super().getitem(obj, argument)
        return self._count(item) if isinstance(argument, slice) else item

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter, each of whose uses is a step; what Jinja itself passes to it is no argument."""
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        def bounded(*args: Any, **options: Any) -> Any:
            return self._step(partial(function, *args, **options), *args[skipped:], *options.values())

        return update_wrapper(bounded, function)

    def _step(self, work: Callable[[], Any], *args: Any) -> Any:
        """Do what cannot make more than the product of its two largest arguments, and count what it made."""
        numbers = [abs(value) for value in args if isinstance(value, int | float)]
        if any(number > MAX_NUMBER for number in numbers):
            raise SecurityError("a number this large is not allowed")
        sizes = sorted([1, 1, *numbers, *(len(value) for value in args if isinstance(value, Sized))])
        if sizes[-1] * sizes[-2] > self._max_work:
            raise SecurityError("arguments this long are not allowed together")
        return self._count(work())

    def _charge(self, size: int) -> None:
        """Take bytes from the budget, and look at the clock."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TemplateRuntimeError(f"makes more than {self._largest >> 20} MiB")
        if time.thread_time() > self._deadline:
            raise TemplateRuntimeError(f"takes longer than {MAX_SECONDS:g} s")

    def _count(self, value: Any) -> Any:
        """Count a value, and refuse one that would be large if it were written out, its parts each time they occur."""
        if isinstance(value, Iterator):
            value = list(self._items(value))
        self._charge(sys.getsizeof(value))
        size, parts = 0, [value]
        while parts:
            part = parts.pop()
            size += sys.getsizeof(part)
            if size > self._largest:
                raise TemplateRuntimeError(f"makes a value of more than {self._largest >> 20} MiB")
            if isinstance(part, dict):
                parts += [*part, *part.values()]
            elif isinstance(part, list | tuple | set | frozenset):
                parts += part
        return value

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop or an iterator."""
        for item in items:
            self._charge(16)
            yield item

    def _text(self, value: Any) -> str:
        return value if isinstance(value, str) else self._count(str(value))

    def _concatenate(self, values: Iterable[Any]) -> str:
        texts = []
        for text in map(self._text, values):
            self._charge(sys.getsizeof(text))
            texts.append(text)
        return "".join(texts)

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON without the escapes for web pages that Jinja's own filter adds; arguments as in transformers."""
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return self._concatenate(encoder.iterencode(value))


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    if len(format) > 100 or re.search("%[^A-Za-z%-]|%-[^A-Za-z]", format):  # such as a width of many digits
        raise SecurityError(f"the date format {format[:100]!r} is not allowed")
    return datetime.now().strftime(format)
