"""Times of the page in a browser: `python -m benchmarks.page MODEL`, each printed at once, with its target beside.

Needs a built page (`make page`), playwright and a chromium. MODEL (the targets are for 12 layers of 12 heads) reads 512
tokens and is looked into; a small model writes the long text; the ten runs have 100,000 steps each. Times count from
what a reader does until the frame after the change is painted.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from playwright.sync_api import sync_playwright

import archetype
from archetype.estimate.report import total_parameters
from archetype.io.yaml import mapping_to_yaml
from archetype.runs.directory import Run, write_run_spec
from archetype.training.metrics import Step
from archetype.training.recipe import Recipe
from benchmarks.serve import start, tiny
from tests.page.browser import ARGUMENTS, CHROMIUM, chromium

TOKENS, STEPS, RUNS = 512, 100_000, 10
WRITTEN = 20_000  # tokens of the long text
WATCH = """
// before a frame is painted its callbacks run: what holds in one is painted when the next task runs
window.until = (holds) => new Promise((resolve) => {
  const look = () => holds() ? setTimeout(() => resolve(performance.now())) : requestAnimationFrame(look)
  requestAnimationFrame(look)
})
window.timed = async (act, holds) => { const began = performance.now(); act(); return (await until(holds)) - began };
window.frames = []; window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({ type: "longtask" });
const frame = (now) => { frames.push(now); requestAnimationFrame(frame) };
requestAnimationFrame(frame);
"""


def row(name: str, milliseconds: list[float], target: str) -> None:
    """Print the median of some times."""
    print(f"{name:52}{statistics.median(milliseconds):9.1f} ms   {target:22}{len(milliseconds):3} times", flush=True)


class Tab:
    """A tab of the browser.

    Args:
        tab: of playwright.
        port: of the server.
    """

    def __init__(self, tab: Any, port: int) -> None:
        self.tab, self.port = tab, port
        tab.add_init_script(WATCH)
        tab.set_default_timeout(120_000)

    def open(self, hash: str, selector: str) -> None:
        """Load a screen anew, and wait for an element."""
        self.tab.goto("about:blank")
        self.tab.goto(f"http://127.0.0.1:{self.port}/#/{hash}")
        self.tab.wait_for_selector(selector, state="attached")

    def timed(self, act: str, holds: str) -> float:
        """Milliseconds from an action until something holds and is painted; both in the page's own words."""
        return float(self.tab.evaluate(f"timed(() => {{ {act} }}, () => {holds})"))


def first_screen(new: Callable[[], Tab], repeat: int) -> None:
    """From an empty browser to a screen that can be used."""
    times = []
    for _ in range(repeat):
        tab = new()
        tab.open("architecture?spec=preset:gpt2", "rect.box")
        times.append(tab.tab.evaluate("until(() => true)"))
        tab.tab.context.close()
    row("first screen, from navigation to the diagram", times, "500")


def edit(tab: Tab, repeat: int) -> None:
    """A number of layers is typed; its diagram and its costs follow."""
    tab.open("spec?spec=preset:gpt2", ".cm-content")
    tab.tab.wait_for_selector("[data-number=parameters]")
    line = tab.tab.locator(".cm-line", has_text="repeat:").first
    line.click()
    tab.tab.keyboard.press("End")
    times, layers = [], "12"
    for _ in range(repeat):
        tab.tab.wait_for_timeout(500)
        layers = "1" if layers == "12" else "12"
        size = total_parameters(archetype.spec.assign(archetype.load_spec("gpt2"), [f"num_layers={layers}"]))
        before = tab.tab.locator("[data-number=parameters]").inner_text()
        tab.tab.evaluate(
            """before => {
              window.took = 0
              const changed = () => document.querySelector("[data-number=parameters]").textContent !== before
              const count = async () => { window.took = await timed(() => {}, changed) }
              addEventListener("keydown", count, { once: true, capture: true })
            }""",
            before,
        )
        tab.tab.keyboard.press("Backspace" if layers == "1" else "2")
        times.append(float(tab.tab.wait_for_function("() => window.took").json_value()))
        shown = tab.tab.locator("[data-number=parameters]").get_attribute("title").replace(",", "")
        assert int(shown) == size, (shown, size)
    row("an edit of a specification, until all has changed", times, "100")


def inside(tab: Tab, model: str, repeat: int) -> None:
    """The heads of 512 tokens, and one after another."""
    ids = ",".join(str((31 * place + 7) % 256) for place in range(TOKENS))
    tab.open(f"inside?model={model}&ids={ids}&view=flow", "[data-view=flow] figure canvas")
    heads = "document.querySelectorAll('[data-tile]').length"
    grids = []
    for _ in range(repeat):
        grids.append(tab.timed("document.getElementById('tab-attention').click()", f"{heads} > 1"))
        shown = tab.tab.evaluate(heads)
        tab.timed("document.getElementById('tab-flow').click()", "document.querySelector('[data-view=flow] canvas')")
    row(f"the grid of {shown} heads", grids, "150")
    tab.timed("document.getElementById('tab-attention').click()", f"{heads} > 1")
    tab.tab.wait_for_selector("[data-map] canvas")
    times: dict[str, list[float]] = {"one map, fetched and painted": [], "one map again": []}
    for values in times.values():
        for head in range(1, repeat + 1):
            tab.tab.wait_for_timeout(300)
            act = f"document.querySelector(\"[data-tile='blocks.0.mixer/{head}']\").click()"
            values.append(tab.timed(act, f"document.querySelector(\"[data-map][data-head='{head}'] canvas\")"))
    for (name, values), target in zip(times.items(), ("60", "16"), strict=True):
        row(name, values, target)


def stream(port: int, model: str) -> None:
    """A long text is written into the page of a browser that no program listens to.

    One that does has it keep the whole answer, and decode it at its end, in a task of a quarter of a second. So the
    page begins by itself when the program has left, and says in its title when it has the whole text.

    Args:
        port: of the server.
        model: that writes.
    """
    settings = json.dumps({"max_tokens": WRITTEN, "temperature": 1, "seed": 1, "ignore_eos": True})
    query = urlencode({"model": model, "text": "a", "sampling": settings})
    with chromium_alone() as address:
        with tab_of(address) as tab:
            Tab(tab, port).open(f"write?{query}", "textarea")
            tab.evaluate("""() => {
              const find = (label) =>
                [...document.querySelectorAll("button.primary")].find((one) => one.textContent.includes(label))
              const write = async () => {
                frames.length = tasks.length = 0
                find("Generate").click()
                await until(() => find("Stop"))
                await until(() => find("Generate"))
                window.written = frames.slice()
                document.title = "written"
              }
              setTimeout(write, 2000)
            }""")
        while all(one["title"] != "written" for one in json.load(urlopen(f"{address}/json"))):
            time.sleep(1)
        with tab_of(address) as tab:
            frames, tasks = tab.evaluate("[written, tasks]")
    seconds = (frames[-1] - frames[0]) / 1e3
    gaps = sorted(after - before for before, after in pairwise(frames))
    written = f"{WRITTEN:,} tokens written at {WRITTEN / seconds:.0f} a second"
    print(f"{written}: {len(frames) / seconds:.0f} frames a second (60)", flush=True)
    row("  between two frames, the longest of a hundred", [gaps[int(0.99 * len(gaps))]], "17")
    row(f"  the longest of {len(tasks)} long tasks", [max(tasks, default=0.0)], "50")


@contextmanager
def chromium_alone() -> Iterator[str]:
    """The address by which programs reach a browser without a window, and leave it again."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # its children write a little longer
        options = ["--headless", "--window-size=1440,900", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
        assert CHROMIUM is not None
        process = subprocess.Popen([CHROMIUM, *ARGUMENTS, *options, "about:blank"], stderr=subprocess.DEVNULL)
        try:
            while not (file := Path(folder) / "DevToolsActivePort").is_file():
                time.sleep(0.1)
            yield f"http://127.0.0.1:{file.read_text().split()[0]}"
        finally:
            process.terminate()
            process.wait()


@contextmanager
def tab_of(address: str) -> Iterator[Any]:
    """The first tab of such a browser, for a while."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(address)
        yield browser.contexts[0].pages[0]
        browser.close()  # the connection, not the browser


def runs(tab: Tab, names: list[str], repeat: int) -> None:
    """Ten long runs are drawn; the server has read none of them at first."""
    times = []
    for _ in range(repeat):
        tab.open("runs?runs=none", "table")
        chosen = ",".join(names)
        times.append(tab.timed(
            f"location.hash = '#/runs?runs={chosen}'",
            f"document.querySelectorAll('[data-chart=loss] [data-average]').length === {len(names)}",
        ))  # fmt: skip
    row(f"{len(names)} runs of {STEPS:,} steps, first opened", times[:1], "")
    row(f"{len(names)} runs of {STEPS:,} steps, opened again", times[1:], "400")


def long_runs(folder: Path) -> list[str]:
    """Runs of so many steps, as training writes them."""
    lines = [
        json.dumps(asdict(Step(step, 1 + 4 / (1 + step / 1000) + 0.1 * (step % 7), 1e-3, 0.01 * (step % 11), 1e4, 128)))
        for step in range(1, STEPS + 1)
    ]
    for number in range(RUNS):
        (folder / f"run{number}").mkdir(parents=True)
        run = Run(folder / f"run{number}")
        write_run_spec(run, archetype.load_spec("llama-tiny"))
        run.recipe_file.write_text(mapping_to_yaml(Recipe(steps=STEPS, sequence_length=32).dump(full=True)))
        run.metrics_file.write_text("\n".join(lines) + "\n")
    return [f"run{number}" for number in range(RUNS)]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--layers", type=int, default=4, help="of the model that writes: 300 tokens a second are asked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        names, small = long_runs(folder / "runs"), tiny(folder, 2 * WRITTEN, options.layers)
        with chromium() as browser:

            def new(port: int) -> Tab:  # with nothing in its cache
                return Tab(browser.new_context(viewport={"width": 1440, "height": 900}).new_page(), port)

            with served(options.model, "--runs", str(folder / "runs")) as port:
                first_screen(lambda: new(port), options.repeat)
                tab = new(port)
                edit(tab, options.repeat)
                inside(tab, Path(options.model).resolve().name, options.repeat)
                runs(tab, names, options.repeat)
        with served(small, OMP_NUM_THREADS="1") as port:  # the other core is the browser's
            stream(port, Path(small).name)


@contextmanager
def served(*arguments: str, **variables: str) -> Iterator[int]:
    """The port of a server that runs for as long."""
    process, port = start(*arguments, **variables)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
