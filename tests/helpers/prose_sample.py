"""Random docstrings, messages and paragraphs of the project, for a reader who judges how they read.

`python -m tests.helpers.prose_sample --seed N` prints one sample a seed, with the file and line of each text.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Sample(NamedTuple):
    """A text, with the file and the line where it is written."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}\n    {self.text}"


def docstrings(folder: Path) -> Iterator[Sample]:
    """Yield the first line of the docstring of each class and function in a folder of Python files."""
    for file, tree in _trees(folder):
        for node in ast.walk(tree):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and (text := ast.get_docstring(node)):
                yield Sample(file, node.body[0].lineno, text.partition("\n")[0])


def messages(folder: Path) -> Iterator[Sample]:
    """Yield the text of each error that a folder of Python files makes, and each help text of an option."""
    for file, tree in _trees(folder):
        assigned = {
            (node.targets[0].id, node.lineno): node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).endswith("Error"):
                texts = [_text(_newest(argument, assigned)) for argument in call.args]
                yield Sample(file, call.lineno, " | ".join(filter(None, texts)))
            for keyword in call.keywords:
                if keyword.arg == "help":
                    yield Sample(file, keyword.value.lineno, _text(keyword.value))


def paragraphs(*folders: Path) -> Iterator[Sample]:
    """Yield each paragraph of the Markdown files in some folders; code, tables and headings are left out."""
    for file in sorted(file for folder in folders for file in folder.glob("*.md")):
        source = file.read_text("utf-8")
        prose = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), source, flags=re.M | re.S)
        for match in re.finditer(r"(?:^.+\n?)+", prose, re.MULTILINE):
            if not match[0].startswith(("#", "|", "<", "!", "---", ":::")):
                yield Sample(file, prose.count("\n", 0, match.start()) + 1, " ".join(match[0].split()))


def _trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    yield from ((file, ast.parse(file.read_text("utf-8"))) for file in sorted(folder.rglob("*.py")))


def _newest(value: ast.expr, assigned: dict[tuple[str, int], ast.expr]) -> ast.expr:
    """Return the value that a name was given last above its line; anything but a name is returned as it is."""
    names = [key for key in assigned if isinstance(value, ast.Name) and key[0] == value.id and key[1] < value.lineno]
    return assigned[max(names)] if names else value


def _text(value: ast.expr) -> str:
    """Return the text of a string, or of an f-string with its expressions in braces; empty for anything else."""
    if isinstance(value, ast.JoinedStr):
        return "".join(map(_text, value.values))
    if isinstance(value, ast.FormattedValue):
        return f"{{{ast.unparse(value.value)}}}"
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="Seed of the random choice.")
    draw, package, docs = random.Random(parser.parse_args().seed), Path("archetype"), Path("docs")
    kinds = {"docstrings": docstrings(package), "messages": messages(package)}
    for title, texts in (kinds | {"paragraphs": paragraphs(docs, docs / "guide")}).items():
        samples, count = [sample for sample in texts if sample.text], 20 if title == "paragraphs" else 60
        print(f"\n== {count} of {len(samples)} {title}", *draw.sample(samples, count), sep="\n")
