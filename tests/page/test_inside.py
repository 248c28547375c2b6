"""The screens Inside, State and Runs in a browser: what they show is what Python says."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
import torch

from archetype.diagram.architecture import draw
from archetype.estimate.report import cost_report
from archetype.generate.filters import filtered
from archetype.generate.sample import Sampler, sample
from archetype.inspection import Inspection
from archetype.inspection.way import way
from archetype.models.vision.module import VisionEncoder
from archetype.settings.generation import Sampling
from archetype.studies.report import write_reports
from archetype.training.metrics import Sampled, Step, append
from tests.helpers.cases import case
from tests.helpers.serving import Served
from tests.integration.test_serve_inside import a_run, image_of
from tests.page.browser import Page
from tests.page.conftest import shown
from tests.unit.studies.small import trained
from tests.unit.studies.test_study import pretended

TEXT = "a cat, a cat"
VIEWS = {"flow": "residual", "attention": "attention", "lens": "lens", "experts": "experts", "recurrent": "recurrent"}
READY = {
    "flow": "figure canvas", "attention": "[data-map] canvas", "lens": "[data-kl]", "experts": "[data-gates] canvas",
    "recurrent": "[data-path] path",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The tab notes every request to another place than the server."""


def show(page: Page, address: str, selector: str) -> None:
    """Open a screen anew, and wait for an element."""
    page.tab.goto("about:blank")
    page.open(address)
    page.tab.wait_for_selector(selector, state="attached")


def texts(page: Page, selector: str) -> list[str]:
    """The texts of all elements of a selector."""
    return [text.strip() for text in page.tab.locator(selector).all_inner_texts()]


def of(server: Served, name: str) -> tuple[dict[str, str], Inspection]:
    """The address of a text inside a model, and what Python says of it."""
    server.call("/api/inspect", {"model": name, "ids": [1]})  # which loads it
    lm = next(model.lm for model in server.app.models.loaded if model.name == name)
    if isinstance(lm.model, VisionEncoder):
        body, image = image_of(lm)
        return {"model": name} | body, lm.inspect(image)
    target = {"target": "un chat"} if name == "t5-tiny" else {}
    return {"model": name, "text": TEXT} | target, lm.inspect(TEXT, target.get("target"))


def table(page: Page, title: str) -> list[list[str]]:
    """The data behind a figure."""
    return page.tab.evaluate(
        """title => {
          const figures = [...document.querySelectorAll('figure')]
          const figure = figures.findLast(one => one.querySelector('h2').textContent.startsWith(title))
          const button = [...figure.querySelectorAll('button')].find(one => one.textContent === 'Data')
          if (button.getAttribute('aria-expanded') === 'false') button.click()
          return new Promise(resolve => setTimeout(() => resolve(
            [...figure.querySelectorAll('.data tr')].map(row => [...row.children].map(cell => cell.textContent))), 60))
        }""",
        title,
    )  # type: ignore[no-any-return]


def pixels(page: Page, canvas: str) -> "np.ndarray[Any, Any]":
    """The colours of a canvas and its opacity, (rows, columns, 4)."""
    width, height, data = page.tab.evaluate(
        """selector => {
          const canvas = document.querySelector(selector)
          const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data
          return [canvas.width, canvas.height, [...data]]
        }""",
        canvas,
    )
    return np.array(data, dtype=np.uint8).reshape(height, width, 4)


def viridis(cells: torch.Tensor, low: float = 0.0, high: float = 1.0) -> "np.ndarray[Any, Any]":
    """The colours that matplotlib gives to numbers."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    colors = colormaps["viridis"](Normalize(low, high)(cells.numpy()), bytes=True)
    return np.asarray(colors)[..., :3]


@shown("mixtral-tiny", "mamba-tiny")  # which have all views
@torch.no_grad()
def test_every_kind_of_model_is_shown_with_pythons_numbers(page: Page, server: Served, names: tuple[str, ...]) -> None:
    seen = set[str]()
    models = {name: of(server, name) for name in names}  # all are loaded before the page asks what they are
    for name, (values, inspection) in models.items():
        for view in (one for one, needs in VIEWS.items() if needs in inspection.views):
            with case(name, view):
                page.open(f"inside?{urlencode(values | {'view': view})}")
                ready = f"[data-model={name}] [data-view={view}] {READY[view]}"
                page.tab.wait_for_selector(ready, state="attached")
                titles = [one.lower() for one in texts(page, "[role=tab]")]
                assert titles == ["token", *(one for one in VIEWS if VIEWS[one] in inspection.views)]
                assert texts(page, "[role=tab][aria-selected=true]") == [view.title()]
                same_numbers(page, view, inspection)
                assert view in seen or page.accessibility() == []
                seen.add(view)
    assert seen == VIEWS.keys()


def same_numbers(page: Page, view: str, inspection: Inspection) -> None:
    match view:
        case "flow":
            residual = inspection.residual()
            norms = residual.norms
            rows = table(page, "Residual stream")[1:]
            assert [[float(cell) for cell in row[1:]] for row in rows] == [
                [float(f"{value:.5g}") for value in row] for row in norms.double().tolist()
            ]
            # of the last token; a layer after whose sum a norm follows, or that adds nothing up, has none
            shares = torch.stack([*residual.shares.values()], -1)[:, -1]
            shown = [float(text.rstrip("%")) for text in texts(page, "[data-share]")]
            assert shown == pytest.approx((100 * shares[~shares.isnan()]).tolist(), abs=0.06)
        case "attention":
            path = page.tab.evaluate("document.querySelector('[data-map]').dataset.map")
            head: Any = inspection.attention(path, 0)
            allowed = ~head.masked.isneginf().numpy()
            drawn = pixels(page, "[data-map] canvas").astype(int)
            assert (drawn[..., 3] == 255 * allowed).all()  # what is not allowed is as the paper
            close = np.abs(drawn[..., :3] - viridis(head.weights.float()))
            assert close[allowed].max() <= 1  # d3 writes matplotlib's colours in steps of 1 / 255, rounded
            whole: Any = inspection.attention(path)
            scores = {name: texts(page, f"[data-score={name}]")[0] for name in whole.statistics[0]}
            assert scores == {
                name: "–" if values[0].isnan() else f"{float(values[0]):.3f}"
                for name, values in whole.statistics[0].items()
            }
        case "lens":
            lens = inspection.lens(10)
            assert texts(page, "[data-kl]") == [f"{float(lens.kl[-1, -1]):.4f} nats"]
            rows = table(page, "Logit lens")[1:]
            best = lens.log_probabilities[..., 0].double().exp()
            assert [[cell.split()[-1] for cell in row[1:]] for row in rows] == [
                [f"{100 * value:.1f}%" for value in row] for row in best.tolist()
            ]
        case "experts":
            routing = inspection.experts().routings[0]
            assert texts(page, "[data-load]") == [f"{100 * value:.1f}%" for value in routing.load.double().tolist()]
            gates = routing.gates.T
            close = np.abs(
                pixels(page, "[data-gates] canvas")[..., :3].astype(int) - viridis(gates, 0, float(gates.max()))
            )
            assert close.max() <= 1
        case "recurrent":
            series = inspection.recurrent().series
            path = page.tab.evaluate("document.querySelector('[data-path]').dataset.path")
            for one in (one for one in series if one.path == path):
                rows = table(page, one.name)[1:]
                assert [float(row[1]) for row in rows] == pytest.approx(one.values.double().tolist(), rel=1e-5)


@shown("t5-tiny", "mixtral-tiny", "vit-tiny")
@torch.no_grad()
def test_one_token_goes_through_the_diagram_of_every_kind(page: Page, server: Served, names: tuple[str, ...]) -> None:
    """Boxes with numbers are coloured; those of the chosen one, and its size, are those of Python."""
    for name in names:
        with case(name):
            values, inspection = of(server, name)
            position = len(inspection.trace.inputs.tokens) - 2
            stations = list(way(inspection.trace.model, inspection.trace.inputs, position))
            kinds = {one.name.rpartition(".")[2]: one for one in stations if one.layer in (0, None)}
            special = next((kinds[one] for one in ("weights", "hidden", "logits") if one in kinds), stations[0])
            part = quote(special.box)
            page.open(f"inside?{urlencode(values | {'view': 'token', 'token': position, 'layer': 0})}&part={part}")
            page.tab.wait_for_selector(f"[data-model={name}] [data-way^='position={position}&']")
            own = next(one for one in stations if one.box == special.box and one.layer in (0, None))
            page.tab.wait_for_selector(f"[data-station='{own.name}'] [data-norm]")
            norm = own.values[~own.values.isnan()].double().norm()
            assert texts(page, "[data-norm]") == [three_digits(float(norm))]
            rows = table(page, page.text("[data-station] h2"))[1:]
            shown = [float("nan") if row[1] == "masked" else float(row[1]) for row in rows]
            assert shown == pytest.approx(own.values.flatten().tolist()[:2000], rel=1e-5, nan_ok=True)
            coloured = page.tab.locator("rect.box[style*='color-mix']").count()
            boxes = {one.box for one in stations if one.layer in (0, None)}
            assert coloured == len(boxes & {box.id for box in draw(cost_report(inspection.trace.model.spec)).boxes})
    assert page.accessibility() == []


def three_digits(number: float) -> str:
    """As the page writes a number: three digits that count."""
    return f"{round(number):,}" if number >= 999.5 else f"{float(f'{number:.3g}'):g}"


def test_keys_lead_one_token_through_all_layers_to_the_choice(page: Page, server: Served) -> None:
    tab, (values, inspection) = page.tab, of(server, "llama-tiny")
    show(
        page, f"inside?{urlencode(values | {'view': 'token', 'token': 4})}&part=blocks.*.feedforward_sum", "[data-norm]"
    )
    tab.locator("rect.selected").focus()
    for key, part, layer in (
        ("ArrowUp", "blocks.*.mixer_norm", 1), ("ArrowLeft", "blocks.*.mixer_norm", 0),
        ("ArrowRight", "blocks.*.mixer_norm", 1), ("ArrowDown", "blocks.*.feedforward_sum", 0),
    ):  # fmt: skip
        tab.keyboard.press(key)
        tab.wait_for_selector(f"rect.selected[data-id='{part}']:focus")
        tab.wait_for_selector(f"[data-way][data-layer='{layer}']")
        page.address(f"layer={layer}")
    tab.locator("rect[data-id='logits']").click()
    for settings in ({}, {"temperature": 0.5, "top_k": 7}, {"temperature": 0.0}, {"top_p": 0.6, "seed": 3}):
        page.open(f"inside?{urlencode(values | {'view': 'token', 'token': 11, 'part': 'logits'} | settings)}")
        chosen = inspection.trace.logits[0, 11].float()  # type: ignore[index]
        sampling = Sampling(**settings)  # type: ignore[arg-type]
        token = sample(chosen[None], [Sampler(sampling, [], len(chosen), chosen.device)])[0]
        tab.wait_for_selector(f"[data-chosen='{token}']")
        left = 1 if sampling.greedy else int((filtered(chosen[None], sampling) > -torch.inf).sum())
        tab.wait_for_selector(f"[data-left='{left}']")
    tab.locator("input[name=top_k]").focus()
    tab.keyboard.press("ArrowRight")
    page.address("top_k=1")
    tab.wait_for_selector("[data-left='1']")
    assert page.accessibility() == []


def test_keys_walk_the_heads_and_the_address_says_where(page: Page, server: Served) -> None:
    values, inspection = of(server, "llama-tiny")
    show(page, f"inside?{urlencode(values | {'view': 'attention'})}", "[data-map] canvas")
    page.tab.locator("[data-tile='blocks.0.mixer/0']").focus()
    for key, layer, head in (("ArrowRight", 0, 1), ("ArrowDown", 1, 1), ("ArrowLeft", 1, 0), ("ArrowUp", 0, 0)):
        page.tab.keyboard.press(key)
        page.tab.wait_for_selector(f"[data-map='blocks.{layer}.mixer'][data-head='{head}']")
        page.address(f"layer={layer}", f"head={head}")
    page.tab.locator("[data-map] .scroll").focus()
    page.tab.keyboard.press("ArrowDown")
    said = texts(page, "[data-map] .says")[0]
    head: Any = inspection.attention(0, 0)
    assert said.startswith("query a") or "query" in said
    assert f"{float(head.weights[1, 0]):.4g}"[:5] in said
    for stage in ("scores", "masked"):
        show(
            page, f"inside?{urlencode(values | {'view': 'attention', 'stage': stage})}", f"[data-stage={stage}] canvas"
        )
    again = page.address("stage=masked")
    show(page, "state?model=llama-tiny", "h1")
    page.tab.goto(again)
    page.tab.wait_for_selector("[data-stage=masked] canvas")
    assert page.accessibility() == []


def test_the_state_is_shown_as_counted_and_as_allocated(page: Page, server: Served) -> None:
    server.call("/v1/completions", {"model": "t5-tiny", "prompt": "a cat", "max_tokens": 3})
    show(page, "state?model=t5-tiny", "[data-part]")
    [row] = server.call("/api/state?model=t5-tiny").json["models"]
    assert texts(page, "[data-predicted]") == [f"{part['predicted']:,}" for part in row["parts"]]
    assert texts(page, "[data-allocated]") == [f"{part['allocated']:,}" for part in row["parts"]]
    show(page, "state?model=bert-tiny", "text=does not generate")
    assert page.accessibility() == []


def test_curves_grow_while_a_run_is_trained(page: Page, runs: Path) -> None:
    for name, size in (("first", 4), ("second", 8)):
        run = a_run(runs / name, batch_size=size)
        for step in range(1, 41):
            append(run.metrics_file, Step(step, 6 / step + size, 1e-3, 0.5, 128.0, 64))
        append(run.metrics_file, Sampled(40, "<img src=x onerror=alert(1)>"))
    show(page, "runs", "[data-chart=loss] canvas")
    assert texts(page, "[data-run=first] [data-loss]") == [f"{6 / 40 + 4:.4f}"]
    assert "<img src=x onerror=alert(1)>" in texts(page, ".samples td")[0]
    before = texts(page, "[data-chart=loss] [data-average='first']")
    for step in range(41, 60):
        append(runs / "first/metrics.jsonl", Step(step, 1.0, 1e-3, 0.5, 128.0, 64))
    page.tab.wait_for_function(
        "before => document.querySelector(\"[data-chart=loss] [data-average='first']\").textContent !== before",
        arg=before[0],
    )
    page.tab.wait_for_function(
        "() => document.querySelector('[data-run=first] [data-step]').textContent.startsWith('59')"
    )
    rows = table(page, "Training loss")
    assert [row[0] for row in rows[-1:]] == ["second"] and len(rows) == 1 + 59 + 40
    show(page, "runs?x=tokens&smoothing=0&runs=second", "[data-chart=loss] canvas")
    assert texts(page, "[data-chart=loss] [data-average]") == [f"{6 / 40 + 8:.3g}"]
    assert page.accessibility() == []


@pytest.mark.slow  # long enough for several looks at it; lines that are appended are watched above
def test_a_real_run_is_watched_while_it_trains(page: Page, runs: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A cat sat on a mat. A dog sat on a log. " * 200)
    show(page, "runs", "h1")
    command = [
        sys.executable,
        "-m",
        "archetype",
        "train",
        str(text),
        "--to",
        str(runs / "live"),
        "--tokenizer",
        "bytes",
    ]
    sizes = ["--steps", "400", "--batch-size", "2", "--sequence-length", "32", "--set", "evaluate_every=20"]
    with subprocess.Popen([*command, *sizes], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as trainer:
        page.tab.wait_for_selector("[data-run=live] .live")  # the list finds it by itself
        page.open("runs?runs=live&smoothing=0")
        page.tab.wait_for_selector("[data-chart=gradient_norm] [data-average=live]")
        page.tab.wait_for_selector(".samples td")
        seen = [watched(page)]
        while seen[-1]["step"] < 400:
            page.tab.wait_for_function("step => Number(document.querySelector('[data-run=live] [data-step]')"
                                       ".textContent.split(' ')[0]) > step", arg=seen[-1]["step"])  # fmt: skip
            seen.append(watched(page))
        assert trainer.wait(60) == 0
    page.tab.wait_for_selector("[data-run=live] .live", state="detached")
    lines = [json.loads(line) for line in (runs / "live/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "gradient_norm" in line]
    samples = [line["sample"] for line in lines if "sample" in line]
    for name in ("loss", "gradient_norm"):
        last = f"{steps[-1][name]:.3g}"
        page.tab.wait_for_function(
            "([name, last]) =>"
            " Number(document.querySelector(`[data-chart=${name}] [data-average]`).textContent) === last",
            arg=[name, float(last)],
        )
    page.tab.wait_for_function(
        "count => document.querySelectorAll('.samples tr').length === count", arg=min(12, len(samples))
    )
    assert texts(page, ".samples td") == [sample.strip() for sample in reversed(samples[-12:])]
    assert len({one["step"] for one in seen}) > 1 and len({one["gradient_norm"] for one in seen}) > 1
    assert seen[0]["samples"] < len(samples)


def watched(page: Page) -> dict[str, Any]:
    """What the screen shows of the run that is trained."""
    return page.tab.evaluate(
        """() => ({
          step: Number(document.querySelector('[data-run=live] [data-step]').textContent.split(' ')[0]),
          gradient_norm: document.querySelector('[data-chart=gradient_norm] [data-average]').textContent,
          samples: document.querySelectorAll('.samples tr').length,
        })"""
    )  # type: ignore[no-any-return]


def test_a_report_shows_the_numbers_of_its_file(page: Page, reports: Path, tmp_path: Path) -> None:
    study, _ = pretended(tmp_path, "full", trained(seeds=8))
    [written] = [file for file in write_reports(study.outcome(), reports) if file.suffix == ".json"]
    report = json.loads(written.read_text())
    [part] = report["parts"]
    show(page, "reports", "tbody button")
    assert texts(page, "tbody button") == [report["title"]]
    page.tab.click("tbody button")
    page.tab.wait_for_selector("article [data-effect]")
    page.address(f"report={written.stem}")
    effect = page.tab.evaluate("JSON.parse(document.querySelector('[data-effect]').dataset.effect)")
    assert effect == part["effect"]["effect"]
    numbers = [float(one) for one in re.findall(r"[-\d.]+(?:e-\d+)?", texts(page, ".summary")[0].replace("−", "-"))]
    p, margin = part["effect"]["p"], part["effect"]["margin"]
    assert numbers == [float(f"{value:.3g}") for value in (*part["effect"]["effect"], p, margin)]
    assert texts(page, ".verdict") == [report["verdict"]]
    for name, arm in part["arms"].items():
        values = part["comparisons"][0]["values"][name]
        cells = texts(page, f"[data-arm={name}] td")
        assert cells[1] == f"{arm['parameters']:,}" and cells[-2] == f"{arm['tokens']:,}"
        assert float(cells[-1].split()[0]) == pytest.approx(sum(values) / len(values), rel=1e-3)
    assert texts(page, "[data-arm=wide] td")[0] == "d_model 16"
    page.tab.click("summary:text-is('All data')")
    assert json.loads(page.tab.locator("article pre").last.text_content() or "") == report
    assert page.accessibility() == []


@pytest.mark.slow
def test_the_pages_memory_stays_flat_over_a_hundred_inspects(page: Page, server: Served) -> None:
    show(page, "inside?model=llama-tiny&view=attention&text=one", "[data-map] canvas")
    session = page.tab.context.new_cdp_session(page.tab)
    sizes: list[int] = []
    for number in range(155):
        text = f"{number} " + "a cat and a dog " * 6
        page.tab.fill("main textarea", text)
        with page.tab.expect_response("**/api/inspect") as response:
            page.tab.click("button:text-is('Look inside')")
        id = response.value.json()["id"]
        page.tab.locator(f"[data-inspection='{id}']").wait_for(state="attached")  # keeps no handle of the element
        if number % 5 == 0:
            view = ("flow", "lens", "attention")[number % 3]
            page.tab.click(f"[role=tab]:text-is('{view.title()}')")
            page.tab.locator(f"[data-view={view}] {READY[view]}").first.wait_for(state="attached")
        if number in (49, 154):  # where the same view is shown
            page.tab.evaluate("performance.clearResourceTimings()")
            for _ in range(3):
                session.send("HeapProfiler.collectGarbage")
            sizes.append(session.send("Runtime.getHeapUsage")["usedSize"])
    assert sizes[1] - sizes[0] < 2**20, sizes  # bytes
    captures: Any = server.app.models.on_unload.__self__  # type: ignore[attr-defined]
    assert sum(one.nbytes for one in captures.all) <= captures.max_bytes == 2**28


@pytest.mark.slow
def test_memory_stays_flat_over_a_hundred_inspections(server: Served) -> None:
    import resource

    def inspect(number: int) -> None:
        body = {"model": "llama-tiny", "text": f"{number} " + "a cat and a dog " * 7}
        id = server.call("/api/inspect", body).json["id"]
        for path in ("heads", "lens?k=3", "attention?layer=0&head=1"):
            assert server.call(f"/api/inspect/{id}/{path}").status == 200

    captures: Any = server.app.models.on_unload.__self__  # type: ignore[attr-defined]
    captures.max_bytes = 2**21
    for number in range(30):
        inspect(number)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(100):
        inspect(number)
    assert sum(one.nbytes for one in captures.all) <= 2**21
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14, json.dumps(len(captures.all))  # KiB
