"""The course: notebooks are built from their lessons, lessons run, and the answer key answers their exercises."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from course.notebook import FOLDER, LESSONS, answers_of, lesson_cells, notebook, notebook_file, read_cells
from tests.helpers import forked

LONG = {"12"}  # that takes seconds even with few steps; the others take one each
WARNINGS = "error,ignore:__array__ implementation:DeprecationWarning"  # of torch's tensors, where NumPy 2 draws them
RUN = "from course.run import run; print(run([{name!r}], {steps}))"
PICTURES = ("image/png", "image/svg+xml")
MOST_BYTES = 60_000  # of a stored picture


def written(script: Path) -> dict[str, Any]:
    """The stored notebook of a lesson."""
    return json.loads(notebook_file(script).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def code_cells(script: Path) -> list[dict[str, Any]]:
    """Its code cells."""
    return [cell for cell in written(script)["cells"] if cell["cell_type"] == "code"]


def test_there_are_twelve_lessons_with_notebook_and_answers() -> None:
    names = [f"{number:02}" for number in range(1, 13)]
    assert [script.name[:2] for script in LESSONS] == names
    assert {file.stem for file in FOLDER.glob("*.ipynb")} == {script.stem for script in LESSONS}
    assert {file.name for file in (FOLDER / "answers").glob("*.py")} == {script.name for script in LESSONS}


@pytest.mark.parametrize("script", LESSONS, ids=lambda script: script.stem)
def test_a_notebook_is_what_its_lesson_says(script: Path) -> None:
    stored = written(script)
    outputs = [cell["outputs"] for cell in code_cells(script)]
    remedy = f"build it again: python -m course.build {script.name[:2]}"
    assert stored == notebook(lesson_cells(script), outputs), remedy
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\w-]{1,64}", one) for one in ids)


@pytest.mark.parametrize("script", LESSONS, ids=lambda script: script.stem)
def test_a_notebook_has_pictures_exercises_and_a_prediction(script: Path) -> None:
    outputs = [output for cell in code_cells(script) for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}  # no error
    pictures = [
        "".join(data[kind])
        for output in outputs
        for data in (output.get("data", {}),)
        for kind in PICTURES
        if kind in data
    ]
    assert pictures and max(map(len, pictures)) < MOST_BYTES
    titles = [cell.title for cell in lesson_cells(script)]
    assert titles[1:3] == ["install", "helpers"]
    assert [title for title in titles if title.startswith("exercise")] == [f"exercise {n}" for n in (1, 2, 3)]
    assert [title for title in titles if title.startswith("check")] == [f"check {n}" for n in (1, 2, 3)]
    assert list(answers_of(script)) == [f"exercise {n}" for n in (1, 2, 3)]
    text = [cell.source for cell in read_cells(script)]
    assert "prediction = None" in text and any("reveal(prediction" in source for source in text)


@pytest.mark.parametrize(
    ("script", "steps"),
    [pytest.param(script, 0.02, id=f"{script.stem}-short") for script in LESSONS if script.name[:2] not in LONG]
    + [pytest.param(script, 1.0, marks=pytest.mark.slow, id=f"{script.stem}-whole") for script in LESSONS],
)
def test_a_lesson_runs_and_its_checks_tell_answers_from_none(script: Path, steps: float, tmp_path: Path) -> None:
    """Without answers no check passes, which is the control; with those of the key all do."""
    command = RUN.format(name=script.name[:2], steps=steps)
    environment = {"PYTHONWARNINGS": WARNINGS, "TMPDIR": str(tmp_path)}
    done = forked.run(["python", "-c", command], environment, cwd=forked.ROOT)
    assert done.returncode == 0, done.stderr.decode()
    print(done.stdout.decode())  # the seconds, for `pytest -s`


def test_every_lesson_is_in_the_readme_and_in_the_documentation() -> None:
    readme, page = (FOLDER / "README.md").read_text(), (FOLDER.parent / "docs" / "course.md").read_text()
    for script in LESSONS:
        assert f"({notebook_file(script).name})" in readme
        assert f"(../course/{notebook_file(script).name})" in page
    assert "(course/README.md)" in (FOLDER.parent / "README.md").read_text()


def test_the_readme_has_a_time_for_every_lesson_below_two_minutes() -> None:
    rows = re.findall(r"^(\d\d_\w+) +([\d.]+) +[\d.]+ +3$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == [script.stem for script in LESSONS]
    assert all(float(seconds) < 120 for _, seconds in rows)
