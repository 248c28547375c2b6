"""Every option of every verb, tried in every mode of its verb: it changes what is observed, or is refused there."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer

from archetype.apps.cli import main

VOLATILE = re.compile(  # what differs from run to run
    r"[\d.,]+ (tokens|lines|texts)/s|[\d,.]+ a second"
    r"|\"[a-z_]*(second|_per_s|_ms|free|date|tokens_per)[a-z_]*\": [^,}\n]*"
    r"|^time .*$|^peak .*$|\(\d+ tokens.*|^device: .*$|in [\d.]+ s|[\d.]+ minutes",
    re.MULTILINE,
)
RECORDS = ("recipe.yaml", "provenance.json", "manifest.json", "report.html")  # what was said, not what was done
COMMON = ("extension", "verbose")  # of every verb


class Mode(NamedTuple):
    """A way to call a verb.

    Attributes:
        arguments: of the call; {name} is a file of the material.
        copied: names of the material that are copied into the folder where it runs, for they change.
    """

    arguments: str
    copied: tuple[str, ...] = ()


class Observed(NamedTuple):
    """What a call did: its status, output, and files, without what differs from run to run."""

    status: int
    output: str
    error: str
    files: tuple[tuple[str, str], ...]

    def is_as(self, other: "Observed") -> bool:
        """Whether two calls did the same; what they say of themselves on standard error does not count."""
        return (self.status, self.output, self.files) == (other.status, other.output, other.files)


Outcome = Literal["changed", "refused", "ignored"]


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb with its command; those of a group as `tokenizer train`."""
    group = typer.main.get_command(main.app)
    for name in main.VERBS:
        command: Any = group.get_command(None, name)  # type: ignore[attr-defined,arg-type]
        for inner, one in getattr(command, "commands", {"": command}).items():
            yield f"{name} {inner}".strip(), one


def options(command: Any) -> Iterator[Any]:
    """The options of a verb, but those of all verbs."""
    yield from (one for one in command.params if one.param_type_name == "option" and one.name not in COMMON)


def call(arguments: Sequence[str], folder: Path) -> Observed:
    """Call the program inside this process, in a folder of its own."""
    out, error, before, argv = io.StringIO(), io.StringIO(), Path.cwd(), sys.argv
    os.chdir(folder)
    sys.argv = ["archetype", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            main.main()
    except SystemExit as end:
        status = end.code
    finally:
        os.chdir(before)
        sys.argv = argv
    assert isinstance(status, int)
    shown, said = (VOLATILE.sub("", text.getvalue().replace(str(folder), ".")) for text in (out, error))
    return Observed(status, shown, said, tuple(sorted(_files(folder))))


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    """The files below a folder by the hash of what is in them; of measurements without seconds."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.name not in RECORDS:
            data = file.read_bytes()
            if file.name == "metrics.jsonl":
                lines = [json.loads(line) for line in data.splitlines()]
                data = repr([{k: v for k, v in one.items() if "second" not in k} for one in lines]).encode()
            elif file.suffix in (".json", ".md", ".yaml"):
                data = VOLATILE.sub("", data.decode()).encode()
            yield str(file.relative_to(folder)), hashlib.sha256(data).hexdigest()


class Walk:
    """The modes of a verb, tried with and without an option.

    Args:
        material: files by the names that modes and values give them.
        values: of the options.
        folder: empty.
    """

    def __init__(self, material: Mapping[str, str], values: Mapping[str, str], folder: Path) -> None:
        self.material, self.values, self.folder = material, values, folder
        self.plain: dict[tuple[str, Mode], Observed] = {}
        self.count = 0

    def run(self, verb: str, mode: Mode, more: Sequence[str] = ()) -> Observed:
        """One call of a verb."""
        self.count += 1
        folder = self.folder / f"{self.count}"
        folder.mkdir()
        for name in mode.copied:
            shutil.copytree(self.material[name], folder / name)
        words = [word.format_map(self.material) for word in mode.arguments.split()]
        observed = call([*verb.split(), *words, *(word.format_map(self.material) for word in more)], folder)
        shutil.rmtree(folder)
        return observed

    def outcome(self, verb: str, mode: Mode, option: Any) -> tuple[Outcome, str]:
        """What an option does in a mode, and what was said."""
        if (verb, mode) not in self.plain:
            self.plain[verb, mode] = plain = self.run(verb, mode)
            assert plain.status == 0, (verb, mode, plain.error)
        usual = self.values.get(f"{verb} {option.opts[0]}", "")
        value = "" if option.is_flag else self.values.get(f"{verb} {mode.arguments} {option.opts[0]}", usual)
        with_it = self.run(verb, mode, [option.opts[0], *value.split()])
        if with_it.status == 2:
            said = [line for line in with_it.error.splitlines() if line.startswith("archetype: ")]
            assert said, (verb, mode, option.opts[0], with_it.error)
            return "refused", said[-1]
        assert with_it.status == 0, (verb, mode, option.opts[0], with_it.error)
        return "ignored" if with_it.is_as(self.plain[verb, mode]) else "changed", with_it.error
