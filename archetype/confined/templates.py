"""Render untrusted chat templates, which come with weights, in a child process."""

import json
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from archetype.confined.message_order import starts_of_messages, writes_in_order


def answer(source: str, values: dict[str, Any], with_starts: bool = False) -> list[Any]:
    """Render a template.

    Args:
        source: Jinja source.
        values: variables of the template.
        with_starts: also return the offset of each message, for a template that renders them in order.

    Returns:
        ["text", text]; ["refused", reason] if the template raises an error or is invalid; ["fails", message] for other
        exceptions. With starts, ["text", text, offsets], or ["unordered", ""] if the template does not render in order.
    """
    try:
        if not with_starts:
            return ["text", _compiled(source).render(values)]
        if not _is_ordered(source):
            return ["unordered", ""]
        return ["text", *starts_of_messages(_compiled(source), values)]
    except TemplateError as error:
        return ["refused", _line(error)]
    except MemoryError:
        raise
    except Exception as error:  # any error of an expression or of the compiled template
        return ["fails", _line(error)]


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=16)
def _is_ordered(source: str) -> bool:
    return writes_in_order(_environment(), source)


class _Generation(Extension):
    # the block {% generation %} marks text to train on, and does not change the rendering

    tags = {"generation"}  # noqa: RUF012 as in jinja2

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    # as in transformers: templates cannot reach Python's internals or change their inputs
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda format: datetime.now().strftime(format)}
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # unlike Jinja's own filter, without HTML escapes; arguments as in transformers
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _line(error: BaseException) -> str:
    return " ".join(str(error)[:1000].split())[:200] or type(error).__name__
