"""The first hour of measuring: texts, labelled texts, a claim, and the course's first lesson."""

import csv
import json
from pathlib import Path

from course.execution import Session
from course.notebook import LESSONS, lesson_cells
from tests.integration.conftest import Run


def test_models_are_evaluated(run: Run, run_directory: Path, text_file: Path, tmp_path: Path) -> None:
    (text := tmp_path / "text.txt").write_text(text_file.read_text()[:500])
    score = json.loads(run("evaluate", run_directory, text, "--json")[0])["texts"][0]
    table = run("evaluate", run_directory, text)[0].splitlines()[-1].split()
    assert table[1:4] == ["499", f"{score['loss']:.4f}", f"{score['perplexity']:.3f}"]
    assert abs(score["bits_per_byte"] - score["loss"] * 499 / 500 * 1.442695) < 1e-4  # a token for each byte

    (short := tmp_path / "short.txt").write_text("a")
    refused = run("evaluate", run_directory, text, short, status=2)[1]
    assert f"{short}: text: has fewer than two tokens, and nothing to predict; use a longer text" in refused
    for words, message in (
        ((), "evaluate: accepts exactly one kind of data; pass FILE, --text, --data, "),
        ((tmp_path / "none.txt",), "none.txt: there is no such file; check the path"),
        ((text, "--stride", "9999"), "stride: 9999 is not between 1 and "),
        (("--data", text), "data: the model has no classes, values or targets"),
        (("--source", text, "--target", text), "data: pairs and beam search need an encoder-decoder"),
        (("--zz",), "No such option: --zz. See `archetype evaluate --help`."),
    ):  # fmt: skip
        told = run("evaluate", run_directory, *words, status=2)[1]
        assert message in told and told.count("\n") == 1

    with (labelled := tmp_path / "labelled.csv").open("w", newline="") as file:
        texts = [("good film", "positive"), ("bad film", "negative")] * 5 + [("good " * 99, "positive")]
        csv.writer(file).writerows([("text", "label"), *texts])
    flags = ("--steps", "2", "--batch-size", "2", "--to", tmp_path / "classes")
    run("train", "--spec", "bert-tiny", "--labelled", labelled, *flags)
    report = run("evaluate", tmp_path / "classes", labelled)[0]
    assert report.endswith("\ntexts: 1 truncated to 128 tokens\n")
    support = {line.split()[0]: line.split()[-1] for line in report.splitlines() if line.startswith(("neg", "pos"))}
    assert support.keys() == {"negative", "positive"}


def test_a_claim_is_settled(run: Run, tmp_path: Path) -> None:
    printed = run("compare", "claim", "21", "--quick", "--store", tmp_path / "store", "--to", tmp_path / "reports")[0]
    assert printed.startswith("claim 21: ") and "\nmaximum  shown" in printed and "not run" not in printed
    assert "21" in (tmp_path / "reports" / "overview.md").read_text()
    assert (tmp_path / "reports" / "claim-21-quick.md").is_file()
    assert "there is no claim 99; use one of 1, 2, " in run("compare", "claim", "99", status=2)[1]
    assert "there is no engine 'nope'; use here, ray" in run("compare", "claim", "21", "--engine", "nope", status=2)[1]


def test_a_learner_runs_the_first_lesson() -> None:
    """One exercise is answered wrongly, one right, and one not; the lesson goes on, and says so of each."""
    script = next(lesson for lesson in LESSONS if lesson.name.startswith("01"))
    answers = {
        "exercise 1": "def mixed_perplexity(p2, p3, w):\n    return 1.0",
        "exercise 3": "def bengio_parameters(V, n, D, F):\n    return V * D + (n * D + 1) * F + (F + 1) * V",
    }
    session, told = Session(draws=False), ""
    for cell in lesson_cells(script):
        if cell.is_markdown or cell.title == "install":
            continue
        source = answers.get(cell.title, cell.source).replace("STEPS = 1.0", "STEPS = 0.02").replace("(1, 8)", "(1, 3)")
        for output in session.execute(source.replace("prediction = None", "prediction = 12"), cell.title):
            told += "".join(output.get("text", ()))
    assert "You predicted 12. It is " in told
    assert "Exercise 1: not yet.\n" in told and "Exercise 3: right.\n" in told
    assert "Exercise 2: not yet. Write your answer in the cell above.\n" in told
