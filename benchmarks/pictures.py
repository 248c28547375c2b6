"""Take the screenshots of the web UI in docs/guide: `python -m benchmarks.pictures FOLDER [--model MODEL] [NAME ...]`.

Needs a built web UI (`make page`) and chromium. The screenshots show the example model, which MODEL replaces, and two
models that are trained once in FOLDER on docstrings of this Python; the report is one of claims/reports. NAME selects
screenshots, such as `hybrid`, the one in README.md.
"""

import argparse
import base64
import io
import json
import pydoc
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from archetype import load_spec
from archetype.apps.serve.example import FOLDER as EXAMPLE
from archetype.apps.serve.example import PROMPT
from archetype.io.yaml import mapping_to_yaml
from archetype.spec import assign, to_yaml
from tests.page.browser import chromium

DOCS = Path(__file__).parents[1] / "docs" / "guide"
STUDIES = Path(__file__).parents[1] / "claims" / "reports"
PORT = 8765
WIDE, PHONE, README = (1280, 960), (360, 740), (1400, 900)
TALL = {"token": (1280, 1060), "transplant": (1280, 1300)}  # so that the whole figure is visible
SCALE = 2  # pixels per point of the screenshot in README.md
STEPS = 600
TEXT = "The model reads a text. The model reads"
SAMPLING = json.dumps({"max_tokens": 60, "temperature": 0.7, "seed": 3})
COOL = json.dumps({"max_tokens": 60, "temperature": 0})
HYBRID = ("layers[1::2].mixer=mamba", "name=hybrid-8b")  # the quickstart of README.md
FEWER = ("layers[*].mixer.num_kv_heads=1",)
WRITTEN = "() => document.body.innerText.includes('ended')"
TOKEN = {"view": "token", "text": TEXT, "token": 8, "layer": 1, "part": "blocks.*.mixer.scores"}
View = tuple[str, dict[str, Any], str, tuple[str, ...]]
# by file: screen, its state, selector or expression that is true when it is ready, and keys to press first
VIEWS: dict[str, View] = {
    "home": ("home", {"text": PROMPT}, "section[aria-busy=false] [data-written]", ()),
    "spec": ("spec", {"spec": "preset:llama-3-8b"}, "[data-number=parameters]", ()),
    "architecture": ("architecture", {"spec": "preset:llama-3-8b", "part": "blocks.*.mixer.q"}, "rect.box", ()),
    "position": ("position", {"spec": "preset:llama-3-8b"}, "main[aria-label=Position] .grid", ()),
    "write": ("write", {"sampling": SAMPLING, "text": TEXT}, WRITTEN, ("Control+Enter",)),
    "columns": (
        "write", {"sampling": SAMPLING, "sampling2": COOL, "beside": "model", "mode": "two columns", "text": TEXT},
        "[data-same]", ("Control+Enter",),
    ),
    "token": ("inside", TOKEN, "[data-norm]", ()),
    "flow": ("inside", {"view": "flow", "text": TEXT, "token": 8}, "figure canvas", ()),
    "attention": ("inside", {"view": "attention", "text": TEXT, "layer": 1, "token": 10}, "[data-map] canvas", ()),
    "lens": ("inside", {"view": "lens", "text": TEXT, "position": 10}, "[data-kl]", ()),
    "experts": ("inside", {"model": "mixture", "view": "experts", "text": TEXT}, "[data-gates] canvas", ()),
    "recurrent": ("inside", {"model": "mamba", "view": "recurrent", "text": TEXT}, "[data-path] path", ()),
    "state": ("state", {}, "[data-saved]", ()),
    "runs": ("runs", {}, "[data-chart=loss] canvas", ()),
    "reports": ("reports", {"report": "calibration-of-the-xeon"}, "[data-effect]", ()),
    "transplant": (
        "transplant", {"spec": lambda: packed(str(EXAMPLE), FEWER), "start": "model:model", "text": TEXT},
        "[data-number=kl]", (),
    ),
}  # fmt: skip
DARK = ("attention",)


def main(folder: Path, model: str, names: list[str]) -> None:
    """Train missing models in a folder, serve them, and take the named screenshots, or all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    if not text.exists():
        modules = (str, list, dict, json, subprocess, io, pydoc, Path)
        text.write_text("\n".join(pydoc.plain(pydoc.render_doc(one)) for one in modules))
    models = [f"model={model or EXAMPLE}"]
    for name in RUNS:
        if not names or any(name == VIEWS[one][1].get("model") for one in names if one in VIEWS):
            if not (folder / "runs" / name).exists():
                train(folder, name)
            models.append(f"{name}=runs/{name}")
    command = [sys.executable, "-m", "archetype", "serve", *models, "--port", str(PORT), "--reports", str(STUDIES)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        try:
            while "http" not in (line := server.stderr.readline() if server.stderr else ""):
                assert line, "the server did not start"
            take(names)
        finally:
            server.terminate()


RUNS = ("mixture", "mamba")


def train(folder: Path, name: str) -> None:
    """Train a model in the folder."""
    presets = {"mixture": "mixtral-tiny", "mamba": "mamba-tiny"}
    spec = load_spec(presets[name]).dump() | {"name": name}
    del spec["vocab_size"]
    recipe = {
        "spec": spec, "steps": STEPS, "batch_size": 8, "evaluate_every": 60, "evaluate_batches": 5,
        "data": {"text": [str(folder / "text.txt")], "tokenizer": "byte_bpe", "vocab_size": 768},
        "optimizer": {"kind": "adamw", "learning_rate": 0.005}, "schedule": {"kind": "cosine", "warmup_steps": 40},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(mapping_to_yaml(recipe))
    archetype("train", "--recipe", folder / f"{name}.yaml", "--to", folder / "runs" / name)


def archetype(*arguments: str | Path) -> None:
    """Run an archetype command."""
    subprocess.run([sys.executable, "-m", "archetype", *map(str, arguments)], check=True)


def take(names: list[str]) -> None:
    """Take each screen on a wide display and on a phone, with four phones in a row."""
    with chromium() as browser:
        for name in VIEWS:
            if not names or name in names:
                save(photograph(browser, name, TALL.get(name, WIDE)), name)
        if not names or "hybrid" in names:
            photograph(browser, "hybrid", README)  # so that the time shown is not that of a cold server
            save(photograph(browser, "hybrid", README, scale=SCALE), "hybrid")
        for name in DARK:
            if not names or f"{name}-dark" in names:
                save(photograph(browser, name, WIDE, "dark"), f"{name}-dark")
        for number, first in enumerate(range(0, len(VIEWS), 4), 1):
            if names and f"phone-{number}" not in names:
                continue
            row = [photograph(browser, name, PHONE) for name in list(VIEWS)[first : first + 4]]
            strip = Image.new("RGB", (len(row) * (PHONE[0] + 12) - 12, PHONE[1]), "white")
            for index, picture in enumerate(row):
                strip.paste(picture, (index * (PHONE[0] + 12), 0))
            save(strip, f"phone-{number}")


def hybrid() -> View:
    """Return the view of README.md: Llama 3 8B with Mamba in every second layer, compared with Llama 3 8B."""
    values = {"spec": packed("llama-3-8b", HYBRID), "start": "preset:llama-3-8b", "length": 32_768}
    return "spec", values, ".delta", ()


def packed(source: str, changes: Sequence[str]) -> str:
    """Return a changed specification as the address of the web UI holds it."""
    text = to_yaml(assign(load_spec(source), list(changes)))
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    data = base64.urlsafe_b64encode(deflate.compress(text.encode()) + deflate.flush()).decode().rstrip("=")
    return f"yaml:{data}"


def photograph(
    browser: Any, name: str, size: tuple[int, int], colours: str = "light", *, scale: float = 1, port: int = PORT
) -> Image.Image:
    """Return a screenshot of a screen once its content has loaded."""
    screen, values, ready, keys = hybrid() if name == "hybrid" else VIEWS[name]
    values = {key: value() if callable(value) else value for key, value in values.items()}
    model = {} if name == "hybrid" else {"model": "model"}
    viewport = {"width": size[0], "height": size[1]}
    tab = browser.new_page(viewport=viewport, color_scheme=colours, device_scale_factor=scale)
    tab.goto(f"http://127.0.0.1:{port}/#/{screen}?{urlencode(model | values)}")
    tab.wait_for_selector("main h1")
    for key in keys:
        tab.wait_for_selector("textarea")
        tab.keyboard.press(key)
    if ready.startswith("()"):
        tab.wait_for_function(ready)
    else:
        tab.wait_for_selector(ready, state="attached")
    tab.wait_for_timeout(1500)
    picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
    tab.close()
    return picture


def save(picture: Image.Image, name: str) -> None:
    """Save a screenshot with 256 colors."""
    small = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE)
    small.save(DOCS / f"page-{name}.png", optimize=True)
    print(f"page-{name}.png", (DOCS / f"page-{name}.png").stat().st_size, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--model", default="")
    arguments = parser.parse_args()
    main(arguments.folder.resolve(), arguments.model, arguments.names)
