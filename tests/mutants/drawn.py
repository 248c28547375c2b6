"""Bugs that are drawn: `python -m tests.mutants.drawn FILE SEED` shows one.

Each is one of the mutations of the literature (DeMillo 1978; Offutt 1996): an operator, a comparison or a constant
becomes another, arguments change places, a statement or an option is dropped, a condition is negated. The kind is
drawn first, so that files full of numbers get no more than their share of changed numbers.
"""

import ast
import random
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from tests.mutants.bug import PACKAGE, Bug, source


class Site(NamedTuple):
    """A place that can be mutated: the kind of mutation, the characters it replaces, and what it puts there."""

    kind: str
    start: int
    end: int
    after: str


COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*",
    ast.BitOr: "&", ast.BitAnd: "|", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin"}
COMMUTING = {"min", "max", "transpose", "isclose", "equal", "maximum", "minimum", "gcd", "lcm"}  # whatever the order
UNTOUCHED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern)


def draw(file: str, seed: int) -> Bug:
    """The bug of a file and a seed; the same as long as the file is.

    Raises:
        ValueError: nothing in the file can be mutated.
    """
    places = sites(file)
    if not places:
        raise ValueError(f"{file}: nothing in it can be mutated")
    generator = random.Random(f"{file} {seed}")
    kind = generator.choice(sorted({site.kind for site in places}))
    site = generator.choice([site for site in places if site.kind == kind])
    return Bug(file, site.start, source(file)[site.start : site.end], site.after, f"seed {seed}")


def draw_from_folder(folder: str, count: int) -> list[Bug]:
    """Different bugs of a folder of the package; files are drawn by their lengths."""
    files = [str(file.relative_to(PACKAGE)) for file in sorted((PACKAGE / folder).rglob("*.py"))]
    weights = [len(source(file)) for file in files]
    generator = random.Random(folder)
    bugs: dict[tuple[str, str], Bug] = {}
    for seed in range(10 * count):
        [file] = generator.choices(files, weights)
        if sites(file):
            bug = draw(file, seed)
            bugs.setdefault((bug.file, bug.change), bug)
        if len(bugs) == count:
            break
    return [*bugs.values()]


@cache
def sites(file: str) -> tuple[Site, ...]:
    """Every place of a file that can be mutated."""
    text = source(file)
    return tuple(Places(text).all())


class Places:
    """Finds what can be mutated in the text of a file; columns of `ast` count bytes, those of a text characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def _place(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _code(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _between(self, kind: str, left: ast.expr, right: ast.expr, after: str) -> Iterator[Site]:
        """An operator between two operands, as far as only itself stands there."""
        start, end = self._span(left)[1], self._span(right)[0]
        if not set(self.text[start:end]) & set("()#\n"):
            yield Site(kind, start, end, f" {after} ")

    def all(self) -> Iterator[Site]:
        """All places of the text."""
        yield from self.of(ast.parse(self.text), within=False)

    def of(self, node: ast.AST, within: bool) -> Iterator[Site]:
        """The places of a node and of all below it; `within` a function or not."""
        yield from self._own(node, within)
        within = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, UNTOUCHED):
                    yield from self.of(child, within)

    def _own(self, node: ast.AST, within: bool) -> Iterator[Site]:
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                for one, operator, other in zip([left, *others], ops, others, strict=False):
                    yield from self._between("comparison", one, other, COMPARISONS[type(operator)])
            case ast.BinOp(left=left, op=operator, right=right) if within and type(operator) in OPERATORS:
                yield from self._between("operator", left, right, OPERATORS[type(operator)])
            case ast.BoolOp(op=operator, values=values):
                for one, other in pairwise(values):
                    yield from self._between("logic", one, other, "or" if isinstance(operator, ast.And) else "and")
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                code = self._code(operand)
                yield Site("sign", *self._span(node), f"({code})" if "\n" in code else code)
            case ast.Constant(value=value):
                yield from self._constant(node, value)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if self._code(test) != "TYPE_CHECKING":
                    yield Site("condition", *self._span(test), f"not ({self._code(test)})")
            case ast.comprehension(ifs=[test]):
                yield Site("condition", *self._span(test), f"(not ({self._code(test)}))")
            case ast.Call():
                yield from self._call(node)
            case ast.Dict(keys=keys):
                for key in keys:
                    yield from self._key(key)
            case ast.Subscript(slice=key):
                yield from self._key(key)
        if within and self._is_droppable(node):
            yield Site("statement", *self._span(node), "pass")

    @staticmethod
    def _is_droppable(node: ast.AST) -> bool:
        """Whether a statement can be left out and what follows still has its names."""
        match node:
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Break() | ast.Continue():
                return True
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                return True
            case ast.If(body=[ast.Return() | ast.Continue() | ast.Break() | ast.Raise()], orelse=[]):
                return True
        return False

    def _constant(self, node: ast.Constant, value: object) -> Iterator[Site]:
        match value:
            case bool():
                yield Site("constant", *self._span(node), str(not value))
            case int():
                yield Site("constant", *self._span(node), str(value + 1))
            case float() if value == value and abs(value) != float("inf"):
                yield Site("constant", *self._span(node), repr(2 * value if value else 1.0))

    def _call(self, node: ast.Call) -> Iterator[Site]:
        name = ""
        if isinstance(node.func, ast.Name | ast.Attribute):
            name, end = self._code(node.func).rpartition(".")[2], self._span(node.func)[1]
            if name in TWINS:
                yield Site("twin", end - len(name), end, TWINS[name])
        plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
        for one, other in pairwise(plain if name not in COMMUTING else ()):
            if (first := self._code(one)) != (second := self._code(other)):
                start, end = self._span(one)[0], self._span(other)[1]
                between = self.text[self._span(one)[1] : self._span(other)[0]]
                yield Site("arguments", start, end, second + between + first)
        for one, other in pairwise([*plain, *node.keywords]):
            if isinstance(other, ast.keyword) and other.arg:  # with the comma before it
                end = self._span(one.value if isinstance(one, ast.keyword) else one)[1]
                yield Site("option", end, self._span(other.value)[1], "")

    def _key(self, key: ast.expr | None) -> Iterator[Site]:
        """A name by which something is looked up, in another spelling."""
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value:
            yield Site("key", *self._span(key), repr(f"{key.value}_"))


def main(file: str, seed: str) -> None:
    """Show a bug."""
    bug = draw(file, int(seed))
    print(f"{bug.file}:{bug.line}: {bug.change}")


if __name__ == "__main__":
    main(*sys.argv[1:])
