"""The options that a message names: each belongs to the verb that prints it, or to the command that it writes out."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.helpers.options import verbs

COMMAND = re.compile(r"`?archetype ((?:[a-z]+ ?){1,2})([^`,;]*)`?")
QUOTED = re.compile(r"`[^`]*`|archetype [a-z][^,;]*")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
EVERY_VERB = {"--help", "--extension", "--verbose", "--version"}


@cache
def options_of_verbs() -> Mapping[str, frozenset[str]]:
    """Return the options of each verb by its name, such as `compare plan`."""
    return {
        name: frozenset(option for one in command.params for option in (*one.opts, *one.secondary_opts)) | EVERY_VERB
        for name, command in verbs()
    }


def verb_of(words: str) -> str | None:
    """Return the verb that words begin with; None where there is none of that name."""
    first, _, rest = words.strip().partition(" ")
    pair = f"{first} {rest.partition(' ')[0]}"
    return next((name for name in (pair, first) if name in options_of_verbs()), None)


def wrong_in_commands(text: str) -> list[str]:
    """Return the options of commands that are written out that these verbs do not have."""
    wrong = []
    for words, rest in COMMAND.findall(text):
        verb = verb_of(words)
        known = options_of_verbs()[verb] if verb else frozenset[str]()
        wrong += [f"{words.strip()} {option}" for option in OPTION.findall(rest) if verb and option not in known]
    return wrong


def wrong_in_message(verb: str, text: str) -> list[str]:
    """Return the options that a message names and that neither its verb nor its commands have."""
    known = options_of_verbs()[verb]
    bare = [option for option in OPTION.findall(QUOTED.sub("", text)) if option not in known]
    return [*wrong_in_commands(text), *(f"{verb} {option}" for option in bare)]


@cache
def texts_of(file: Path) -> tuple[str, ...]:
    """Return the texts in a Python file that are no docstrings; what an f-string puts in is X."""
    return tuple(_texts(file))


def _texts(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | said:
            yield node.value
