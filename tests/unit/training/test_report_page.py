"""The report of a run is one page: it holds what was measured, and asks nothing of anyone."""

import re
import signal
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import archetype
from archetype.api.samples import sample
from archetype.apps.cli.main import app
from archetype.chart import COLOURS
from archetype.errors import DataError
from archetype.runs.directory import Run
from archetype.runs.peaks import Peak
from archetype.training import metrics
from archetype.training.metrics import Evaluated, PeakMeasured, Sampled, Step
from archetype.training.report_page import write_report
from archetype.training.setup import start
from tests.helpers.recipes import recipes

NAMESPACE = "http://www.w3.org/2000/svg"  # a name, which no reader fetches
MARKS = ("circle", "line", "polyline", "rect")  # without a closing tag
ARGUMENTS = {
    "tokenizer": "bytes", "steps": 6, "batch_size": 4, "sequence_length": 16, "overrides": ["evaluate_every=3"],
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Six steps of a small decoder, whose folder has a name that is markup."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "text.txt").write_text("a text of <b>some</b> words & marks, long enough for rows\n" * 40)
    archetype.train(folder / "<i>run", folder / "text.txt", **ARGUMENTS)
    return Run(folder / "<i>run")


class Page(HTMLParser):
    """Notes what a page could fetch, its headings, and which tags are open at its end."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "srcset", "data")]
        self.fetched += [tag] if tag in ("script", "link", "img", "iframe", "object", "i", "b") else []
        if tag not in ("meta", *MARKS):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in MARKS:
            assert self.open.pop() == tag


def test_a_trained_run_has_a_page_that_needs_nothing_else(run: Run) -> None:
    page = run.report_file.read_text()
    parsed = Page(page)
    assert (parsed.open, parsed.fetched) == ([], [])
    assert not re.search(r"url\(|@import|http", page.replace(NAMESPACE, ""))
    assert "prefers-color-scheme: dark" in page and "&lt;i&gt;run" in page and "mapping" not in page
    lines = metrics.read(run.metrics_file)
    texts = [line["sample"] for line in lines if "sample" in line]
    assert len(texts) == 2 and all(text.startswith(" text of") or "text" in page for text in texts)
    written = page.split("<h2>Samples</h2>")[1].split("</table>")[0]
    assert re.findall(r"<tr><td[^>]*>([\d,]+)</td>", written) == [
        str(line["step"]) for line in lines if "sample" in line
    ]
    for line in (line for line in lines if "validation_loss" in line):
        assert f'<td style="text-align: right">{line["validation_loss"]:.4f}</td>' in page
    for word in ("llama-tiny", "learning_rate: ", "blocks.0-1.mixer.q", "bits per byte", torch.__version__, "6 of 6"):
        assert word in page, word


def test_curves_stand_where_their_values_are(run: Run) -> None:
    svg = re.findall(r"<svg.*?</svg>", run.report_file.read_text())
    losses = [line["loss"] for line in metrics.read(run.metrics_file) if "loss" in line]
    picture = ElementTree.fromstring(svg[0])
    line = next(mark for mark in picture.iter(f"{{{NAMESPACE}}}polyline") if mark.get("stroke") == COLOURS[0])
    heights = np.array([float(point.split(",")[1]) for point in line.get("points", "").split()])
    slope = (heights[1:] - heights[:-1]) / (np.array(losses[1:]) - np.array(losses[:-1]))
    assert len(heights) == 6 and np.allclose(slope, slope[0], rtol=0.2) and slope[0] < 0


def test_the_verb_makes_it_anew_and_mfu_is_what_the_measured_peak_gives(run: Run) -> None:
    assert "MFU" not in run.report_file.read_text()
    metrics.append(run.metrics_file, PeakMeasured(6, Peak(1e12, "oneDNN")))
    result = CliRunner().invoke(app, ["report", str(run.folder)], catch_exceptions=False)
    assert result.stdout.strip() == str(run.report_file)
    share = re.search(r"<dt>MFU</dt><dd>([\d.]+)% of 1,000 GFLOP/s, measured by oneDNN", run.report_file.read_text())
    steps = [line for line in metrics.read(run.metrics_file) if "loss" in line]
    seconds = sum(line["num_targets"] / line["per_second"] for line in steps)
    flops = archetype.cost_report("llama-tiny", 4, 16, "float32").flops["train"]
    assert share and float(share[1]) == pytest.approx(100 * flops * 6 / seconds / 1e12, abs=0.06)
    metrics.append(run.metrics_file, PeakMeasured(6, Peak(1.0, "torch.mm")))  # which the run itself beats
    assert "100.0% of" in (page := write_report(run).read_text())
    assert "measured by the job itself, faster than torch.mm" in page


def test_steps_that_lack_a_measurement_are_left_out_of_its_picture(run: Run) -> None:
    for lines, is_drawn in (
        ('{"step": 1, "loss": 2.0}\n', False),
        ('{"step": 2, "loss": 1, "gradient_norm": 3}\n', True),
    ):
        run.metrics_file.write_text(run.metrics_file.read_text() + lines if is_drawn else lines)
        page = write_report(run).read_text()
        assert ("Gradient norm" in page) == is_drawn and "0.0 min" in page
    run.metrics_file.write_text('{"step": 1, "loss": 2.0, "num_targets": 8, "per_second": 0}\n')
    assert "0.0 min" in write_report(run).read_text()


def test_an_interrupted_run_has_its_page_too_and_other_folders_are_refused(tmp_path: Path, run: Run) -> None:
    def stop(event: object) -> None:
        if isinstance(event, Step) and event.step == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        archetype.train(tmp_path / "run", run.folder.parent / "text.txt", **ARGUMENTS, on_event=stop)
    assert "2 of 6" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(DataError, match="is not a trained run; pass the folder"):
        write_report(Run(tmp_path))


def test_each_objective_shows_what_its_model_writes(tmp_path: Path) -> None:
    described = recipes(tmp_path)
    described["pairs"] = described["pairs"].replace(data=described["pairs"].data.replace(split="end"))
    texts = {}
    for name in ("gru", "encoder", "pairs", "spans", "images"):
        state = start(tmp_path / name, described[name], torch.device("cpu"))
        texts[name] = sample(state)
        assert state.model.training
    source, _, target = texts["pairs"].partition(" -> ")
    held_out = (tmp_path / "source.txt").read_text().splitlines()[-4:]
    assert source in held_out and target is not None
    assert "[" in texts["encoder"] and len(texts["gru"]) > 8
    assert texts["spans"] == texts["images"] == ""


def test_samples_are_events_and_lines(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("words and more words, again and again\n" * 60)
    events: list[object] = []
    archetype.train(tmp_path / "run", tmp_path / "text.txt", **ARGUMENTS, on_event=events.append)
    kinds = [type(event) for event in events if isinstance(event, Evaluated | Sampled)]
    assert kinds == [Evaluated, Sampled, Evaluated, Sampled]
