"""Executes the cells of a lesson in this process and collects the outputs that a notebook would show."""

import ast
import base64
import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from course.notebook import answers_of, lesson_cells

DPI = 80  # of stored figures


class Session:
    """The namespace of a lesson.

    Args:
        draws: whether figures become pictures; otherwise they are closed.
    """

    def __init__(self, draws: bool = True) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.draws = draws

    def execute(self, source: str, where: str) -> list[dict[str, Any]]:
        """Execute a cell and return its outputs.

        Args:
            source: of the cell.
            where: its name in tracebacks.
        """
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        outputs: list[dict[str, Any]] = []
        with redirect_stdout(printed):
            exec(compile(tree, where, "exec"), self.names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), where, "eval"), self.names)
        if text := printed.getvalue():
            outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
        outputs += self._figures()
        if value is not None:
            outputs.append({"data": _shown(value), "metadata": {}, "output_type": "display_data"})
        return outputs

    def _figures(self) -> list[dict[str, Any]]:
        """Return the open figures as pictures and close them."""
        numbers = plt.get_fignums()
        pictures = [_picture(plt.figure(number)) for number in numbers] if self.draws else []
        plt.close("all")
        return pictures


def run_lesson(script: Path, steps: float = 1.0, draws: bool = True) -> tuple[Session, list[list[dict[str, Any]]]]:
    """Execute a lesson without answers to its exercises.

    Args:
        script: the lesson.
        steps: share of its training steps.
        draws: whether figures become pictures.

    Returns:
        The session, and the outputs of each code cell.
    """
    session, outputs = Session(draws), []
    for cell in lesson_cells(script):
        if not cell.is_markdown:
            source = cell.source.replace("STEPS = 1.0", f"STEPS = {steps}") if cell.title == "helpers" else cell.source
            outputs.append(session.execute(source, f"{script.name}: {cell.title or cell.source[:40]}"))
    return session, outputs


def check_answers(session: Session, script: Path) -> dict[int, bool]:
    """Execute the answers and checks of an executed lesson; return which exercises pass."""
    answers = answers_of(script)
    for cell in lesson_cells(script):
        if cell.title in answers:
            session.execute(answers[cell.title].source, f"answers/{script.name}: {cell.title}")
        elif cell.title.startswith("check"):
            session.execute(cell.source, f"{script.name}: {cell.title}")
    return dict(session.names["answered"])


def _picture(figure: Any) -> dict[str, Any]:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    data = {"image/png": base64.b64encode(file.getvalue()).decode() + "\n", "text/plain": ["<Figure>"]}
    return {"data": data, "metadata": {}, "output_type": "display_data"}


def _shown(value: Any) -> dict[str, Any]:
    """Return a value's representations in a notebook, by MIME type."""
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    for name, kind in (("_repr_html_", "text/html"), ("_repr_svg_", "image/svg+xml")):
        if hasattr(value, name) and not isinstance(value, type):  # a class has the method, and nothing to show
            data[kind] = getattr(value, name)().splitlines(keepends=True)
    return data
