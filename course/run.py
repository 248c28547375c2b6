"""Run the lessons and their answer key: `python -m course.run [LESSON ...]` prints how long each takes."""

import json
import sys
import time
from pathlib import Path

from archetype.table import Table
from course.execution import check_answers, run_lesson
from course.notebook import LESSONS, lesson_cells, notebook, notebook_file

HEADINGS = ("lesson", "seconds", "of one processor", "exercises")


def run(names: list[str], steps: float = 1.0, writes: bool = False) -> Table:
    """Execute lessons without and then with the answers; return the time of each without answers.

    Args:
        names: prefixes of the lessons' file names, such as 03 (default: all).
        steps: share of the training steps.
        writes: whether to write the notebooks, with their outputs.

    Raises:
        AssertionError: a check passes without an answer, or fails with the answer from the key.
    """
    chosen = [script for script in LESSONS if not names or script.name.startswith(tuple(names))]
    return Table(HEADINGS, [_row(script, steps, writes) for script in chosen])


def _row(script: Path, steps: float, writes: bool) -> tuple[str, ...]:
    start = time.perf_counter(), time.process_time()
    session, outputs = run_lesson(script, steps, draws=steps == 1.0)
    seconds = f"{time.perf_counter() - start[0]:.1f}", f"{time.process_time() - start[1]:.1f}"
    unanswered = dict(session.names["answered"])
    assert len(unanswered) == 3 and not any(unanswered.values()), (script.name, unanswered)
    answers = check_answers(session, script)
    assert all(answers.values()), (script.name, answers)
    if writes:
        text = json.dumps(notebook(lesson_cells(script), outputs), indent=1, ensure_ascii=False)
        notebook_file(script).write_text(f"{text}\n", encoding="utf-8")
    return script.stem, *seconds, str(len(answers))


if __name__ == "__main__":
    print(run(sys.argv[1:]))
