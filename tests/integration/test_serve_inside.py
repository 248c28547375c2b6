"""What the page reads of a model's inside, of the engine and of runs: the numbers of Python, over HTTP."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from torch import Tensor

import archetype
from archetype import LanguageModel
from archetype.apps.serve.capture_summary import numbers
from archetype.apps.serve.captures import MAX_BYTES
from archetype.convert.image_processor import square_pictures
from archetype.estimate.memory import MemoryCost
from archetype.estimate.report import cost_report
from archetype.estimate.state import state_parts
from archetype.generate import Event
from archetype.inspection import Inspection
from archetype.inspection.way import way
from archetype.models.build import build
from archetype.models.cost import model_cost
from archetype.models.vision.module import VisionEncoder
from archetype.runs.directory import Run, write_run_spec
from archetype.runs.listing import MetricsFile, downsampled
from archetype.spec import assign
from archetype.tokenizers import train_tokenizer
from archetype.training.metrics import Sampled, Step, append
from archetype.training.recipe import Recipe
from tests.helpers.cases import case
from tests.helpers.serving import Served, serving
from tests.helpers.weights import randomize

KINDS = {
    "llama": "llama-tiny", "gpt2": "gpt2-tiny", "bert": "bert-tiny", "t5": "t5-tiny", "latent": "deepseek-v2-tiny",
    "mixture": "mixtral-tiny", "mamba": "mamba-tiny", "lstm": "lstm-tiny", "ngram": "ngram-tiny",
    "megabyte": "megabyte-tiny", "vit": "vit-tiny", "hybrid": "llama-tiny",
}  # fmt: skip
TEXT = "a cat, a cat and a dog"
STATISTICS = ("entropy", "distance", "previous", "first", "induction")


@cache
def loaded(name: str) -> LanguageModel:
    """A model of bytes with random weights; token 0 ends a text."""
    spec = archetype.load_spec(KINDS[name])
    if name == "vit":
        pictures = square_pictures(*spec.image_shape).contents()  # type: ignore[misc]
        return LanguageModel(spec, randomize(build(spec), seed=3).eval(), image_processor=pictures)  # type: ignore[arg-type]
    spec = assign(spec, ["vocab_size=257", *(["layers[0].mixer={kind: mamba}"] if name == "hybrid" else [])])
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (0,)
    return LanguageModel(spec, randomize(build(spec), seed=5).eval(), tokenizer)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The server is on this machine; tests/integration/test_serve.py sees that nothing else is connected to."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def server(runs: Path, reports: Path) -> Iterator[Served]:
    folders = [reports, reports / "missing"]
    with serving({name: loaded(name) for name in KINDS}, runs=runs, reports=folders) as served:
        yield served


def ask(server: Served, path: str, body: Any = None) -> Any:
    reply = server.call(path, body)
    assert reply.status == 200, reply.body
    return reply.json


def tensor(server: Served, path: str) -> "np.ndarray[Any, Any]":
    reply = server.call(path)
    assert reply.status == 200 and reply.headers["content-type"] == "application/octet-stream", reply.body
    shape = [int(size) for size in reply.headers["x-shape"].split(",")]
    return np.frombuffer(reply.body, reply.headers["x-dtype"]).reshape(shape)


def inspected(server: Served, name: str) -> tuple[Any, Inspection]:
    """The server's answer, and what Python says of the same text."""
    lm = loaded(name)
    if isinstance(lm.model, VisionEncoder):
        body, image = image_of(lm)
        return ask(server, "/api/inspect", {"model": name} | body), lm.inspect(image)
    text: dict[str, Any] = {"source": TEXT, "target": "un chat"} if name == "t5" else {"text": TEXT}
    return ask(server, "/api/inspect", {"model": name} | text), lm.inspect(TEXT, text.get("target"))


def image_of(lm: LanguageModel) -> tuple[dict[str, str], Tensor]:
    """A random image as PNG in a data: URL, and as the model reads it."""
    import base64
    import io

    from PIL import Image

    assert lm.spec.image_shape is not None
    side = lm.spec.image_shape[1]
    pixels = np.random.default_rng(2).integers(0, 256, (side, side), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"image": url}, lm.image(file.getvalue())


@torch.no_grad()
def test_every_kind_of_model_shows_the_numbers_of_lm_inspect(server: Served) -> None:
    for name in KINDS:
        with case(name):
            answer, inspection = inspected(server, name)
            path = f"/api/inspect/{answer['id']}"
            assert {"summary", "attribution", *answer["views"]} >= set(inspection.views) >= set(answer["views"])
            assert ask(server, f"{path}/exact")["max_logit_diff"] == 0 and answer["expires"] > 0
            assert [token["name"] for token in answer["tokens"]] == list(inspection.trace.inputs.tokens)
            if "residual" in answer["views"]:
                view = inspection.residual()
                assert answer["norms"]["residual"] == numbers(view.norms)
                assert all(answer["norms"][part] == numbers(values) for part, values in view.added.items())
            if "attention" in answer["views"]:
                same_attention(server, path, answer, inspection)
            if "lens" in answer["views"]:
                lens, ours = ask(server, f"{path}/lens?k=3"), inspection.lens(10)
                assert lens["ids"] == ours.answers[..., :3].tolist() and lens["rank"] == ours.ranks.tolist()
                assert lens["logp"] == numbers(ours.log_probabilities[..., :3]) and lens["kl"] == numbers(ours.kl)
                assert lens["answers"][-1][-1] == ours.names[-1][-1][:3] and lens["layers"] == ours.layers
                cell = ask(server, f"{path}/lens?k=10&position={len(lens['tokens']) - 1}")
                assert [row[0] for row in cell["logp"]] == numbers(ours.log_probabilities[:, -1])
            if "experts" in answer["views"]:
                mixtures = ask(server, f"{path}/experts")["mixtures"]
                for one, routing in zip(mixtures, inspection.experts().routings, strict=True):
                    assert one["chosen"] == routing.chosen.tolist() and one["weights"] == numbers(routing.weights)
                    assert one["load"] == numbers(routing.load) and one["entropy"] == numbers(routing.entropy)
            if "recurrent" in answer["views"]:
                series = ask(server, f"{path}/recurrent")["series"]
                shown = [(one["path"], one["name"], one["values"]) for one in series]
                assert shown == [(path, name, numbers(x)) for path, name, x in inspection.recurrent().series]
            for view in {"attention", "lens", "experts", "recurrent"} - {*answer["views"]}:
                assert server.call(f"{path}/{view}").error["code"] == "invalid_value"


def same_attention(server: Served, path: str, answer: Any, inspection: Inspection) -> None:
    """Statistics of all heads, their small maps, and the steps of the last head of each layer."""
    maps, scores = tensor(server, f"{path}/heads"), iter(answer["heads"])
    rows = iter(maps)
    for layer in answer["attention"]:
        view: Any = inspection.attention(layer["layer"])
        for head in range(layer["heads"]):
            one = next(scores)
            assert (one["layer"], one["head"]) == (layer["layer"], head)
            assert all(one[name] == numbers(view.statistics[0][name][head]) for name in STATISTICS)
            height, width = layer["shape"]
            small = (1 + 254 * view.maps[0][head]).round().numpy().astype(np.uint8)
            small[~view.allowed[0][head].numpy()] = 0
            assert (next(rows)[:height, :width] == small).all()
        of_head: Any = inspection.attention(layer["layer"], head)
        steps = of_head.tensors()
        steps["weights"] = steps["weights"].masked_fill(steps["masked"].isneginf(), -torch.inf)
        for stage, cells in steps.items():
            address = f"{path}/attention?layer={quote(layer['layer'])}&head={head}&stage={stage}"
            assert (tensor(server, address) == cells.float().numpy()).all()
            small = tensor(server, address + "&max=4")
            assert small.shape == tuple(min(4, size) for size in cells.shape) and small.max() == cells.max()


def test_a_tokens_way_and_the_choice_after_it(server: Served) -> None:
    """Stations are those of Python; what is drawn is what the engine writes with the same settings."""
    lm, ids = loaded("llama"), list(TEXT.encode())
    path = f"/api/inspect/{ask(server, '/api/inspect', {'model': 'llama', 'ids': ids})['id']}"
    last = f"position={len(ids) - 1}"
    stations = ask(server, f"{path}/way?{last}")["stations"]
    own = list(way(lm.model, lm.inspect(torch.tensor([ids])).trace.inputs, len(ids) - 1))
    assert [(one["box"], one["layer"], one["name"]) for one in stations] == [one[:3] for one in own]
    for number in range(0, len(own), 5):
        cells = tensor(server, f"{path}/station?{last}&number={number}")
        assert np.array_equal(cells, own[number].values.numpy(), equal_nan=True)
    for settings in (
        {"temperature": 0.0},
        {"seed": 4},
        {"seed": 5, "top_k": 3},
        {"seed": 6, "top_p": 0.5, "min_p": 0.1},
    ):
        request = lm.engine().submit(ids, max_new_tokens=1, **{"temperature": 1.0} | settings)
        request.result()
        query = "&".join(f"{name}={value}" for name, value in settings.items())
        answer = ask(server, f"{path}/choice?{last}&{query}")
        assert [answer["chosen"]] == request.tokens and answer["rows"][0]["probability"] < 1
    for query, message in (
        ("choice?top_p=0", "top_p: '0' is not a number from 0.001"), ("way?position=99", "position: '99' is not"),
        ("choice?temperature=nan", "temperature: 'nan'"), ("station?number=999", "number: '999' is not a number"),
    ):  # fmt: skip
        assert message in server.call(f"{path}/{query}").error["message"]


def test_what_is_generated_is_inspected_too(server: Served) -> None:
    """Its ids are those that the engine writes; an encoder-decoder writes its target itself."""
    lm = loaded("llama")
    ids = list(TEXT.encode())
    written = lm.engine().submit(ids, temperature=0.0, max_new_tokens=6)
    written.result()
    answer = ask(server, "/api/inspect", {"model": "llama", "ids": ids, "generate": 6})
    assert [token["id"] for token in answer["tokens"]] == [*ids, *written.tokens]
    assert bytes(byte for token in answer["tokens"][: len(ids)] for byte in token["bytes"]).decode() == TEXT
    translated = ask(server, "/api/inspect", {"model": "t5", "source": TEXT, "generate": 4})
    assert 1 < len(translated["tokens"]) <= 5 and len(translated["source_tokens"]) == len(TEXT) + 1


def test_what_cannot_be_inspected_says_why(server: Served) -> None:
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "nothing": ({}, "text: send exactly one of ids, text, messages, source or image"),
        "two": ({"text": "a", "ids": [1]}, "ids, text, messages, source or image"),
        "an image": (
            {"image": "data:image/png;base64,AA"},
            "image: llama is of kind decoder and does not read this input",
        ),
        "a text to an image model": ({"model": "vit", "text": "a"}, "text: vit is of kind vision"),
        "a long text": ({"text": "a" * 400}, "has 400 tokens, but the model accepts"),
        "an id": ({"ids": [999]}, "outside the vocabulary of 257"),
        "a target": ({"text": "a", "target": "b"}, "llama is not an encoder-decoder"),
        "an encoder that writes": ({"model": "bert", "text": "a", "generate": 3}, "does not support completions"),
        "a wrong field": ({"txt": "a"}, "did you mean text"),
        "no number": ({"text": "a", "generate": 0}, "generate: "),
    }
    for name, (body, message) in cases.items():
        with case(name):
            assert message in server.call("/api/inspect", body).error["message"]
    id = ask(server, "/api/inspect", {"text": "a cat"})["id"]
    for query, message in {
        "layer=9": "layer: 9 is out of range", "head=9": "9 is out of range", "head=x": "head: 'x' is not a number",
        "stage=logits": "stage: 'logits' is not a stage of attention; use one of scores, masked, weights",
        "max=0": "max: '0'",
    }.items():  # fmt: skip
        with case(query):
            assert message in server.call(f"/api/inspect/{id}/attention?{query}").error["message"]
    assert "k: '99' is not a number from 1 to 10" in server.call(f"/api/inspect/{id}/lens?k=99").error["message"]
    gone = server.call("/api/inspect/insp-0/heads")
    assert (gone.status, gone.error["code"]) == (404, "inspection_not_found")


def test_captures_have_a_limit_and_leave_with_their_model(runs: Path) -> None:
    models = {name: loaded(name) for name in ("llama", "gpt2")}
    with serving(models, memory_bytes=1) as served:
        captures = served.app.captures
        captures.max_bytes = 2**17
        ids = [ask(served, "/api/inspect", {"model": "llama", "text": f"{n} " + TEXT})["id"] for n in range(6)]
        remaining = [id for id in ids if served.call(f"/api/inspect/{id}/heads").status == 200]
        assert 1 <= len(remaining) < 6 and remaining == ids[-len(remaining) :]
        assert sum(capture.nbytes for capture in captures.all) <= 2**17 < MAX_BYTES
        served.call("/v1/completions", {"model": "gpt2", "prompt": "a", "max_tokens": 1})
        assert [model.name for model in served.app.models.loaded] == ["gpt2"] and not captures.all
        assert served.call(f"/api/inspect/{remaining[-1]}/lens").error["code"] == "inspection_not_found"


def test_no_stream_stalls_while_a_text_is_inspected(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The greedy answer is the same, and its tokens come between the parts of the inspection."""
    body = {"model": "llama", "prompt": TEXT, "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    alone = ask(server, "/v1/completions", body)["choices"][0]["text"]
    worker = next(model.worker for model in server.app.models.loaded if model.name == "llama")
    assert worker.engine is not None
    order: list[str] = []  # of what the model's thread did
    inspected = threading.Event()
    run, step = worker.run, worker.engine.step

    def step_beside_inspection() -> list[Event]:
        """The stream waits for the inspection's next part, so that it lasts as long, whichever of them is faster."""
        while len(order) >= 5 and not worker._jobs and not inspected.is_set():
            time.sleep(0.001)
        events = step()
        order.append("tokens")
        return events

    monkeypatch.setattr(worker, "run", lambda job: run(lambda: (order.append("inspection"), job())[1]))
    monkeypatch.setattr(worker.engine, "step", step_beside_inspection)
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.append(ask(server, "/v1/completions", body)["choices"][0]["text"]))
    thread.start()
    try:
        while thread.is_alive() and "tokens" not in order:
            time.sleep(0.001)
        ask(server, "/api/inspect", {"model": "llama", "text": TEXT})
    finally:
        inspected.set()
        thread.join()
    assert texts == [alone]
    parts = [index for index, what in enumerate(order) if what == "inspection"]
    assert len(parts) >= 4 and all("tokens" in order[first:second] for first, second in pairwise(parts))


@torch.no_grad()
def test_counted_state_is_the_allocated_one_part_by_part(server: Served) -> None:
    for name in KINDS:
        with case(name):
            spec = loaded(name).spec
            for length in (1, 7, 64):
                total = sum(part.nbytes(4) for part in state_parts(spec, length))
                assert total == MemoryCost(model_cost(spec), "float32").state(1, length)
            if name in ("bert", "vit"):
                continue
            body = {"model": name, "prompt": TEXT[:9], "max_tokens": 3, "temperature": 0}
            ask(server, "/v1/completions", body)
            [row] = ask(server, f"/api/state?model={name}")["models"]
            assert all(part["predicted"] == part["allocated"] > 0 for part in row["parts"])
            assert (row["dtype"], row["requests"], row["context_length"]) == ("float32", [], spec.context_length)
            assert len(row["line"]["bytes"]) == len(row["parts"]) and row["line"]["length"][-1] == spec.context_length
            stats = next(model.worker.engine for model in server.app.models.loaded if model.name == name)
            assert stats is not None and sum(part["allocated"] for part in row["parts"]) == stats.stats().state_bytes
    assert ask(server, "/api/state?model=bert")["models"] == []
    assert server.call("/api/state?model=bart").error["code"] == "model_not_found"


def test_the_engine_says_what_it_does(server: Served) -> None:
    with server.connect() as connection:
        server.send(connection, "/api/events")
        data = b""
        while b"data: " not in data:
            data += connection.recv(65536)
        assert b"text/event-stream" in data
        threading.Thread(
            target=lambda: server.call("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 90})
        ).start()
        rows: list[Any] = []
        while not any(row["tokens_per_second"] > 0 and row["state_bytes"] > 0 for row in rows):
            data += connection.recv(65536)
            events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ") and line[-1] == "}"]
            models = [row for event in events[1:] for row in json.loads(event)["models"]]
            rows = [row for row in models if row["name"] == "llama"]
        assert {"waiting", "running", "slots", "bytes_per_second", "cache_use"} <= rows[-1].keys()
        assert not any(row.get("bandwidth") for row in models)  # it is measured when nothing runs
        while not (measured := [int(value) for value in re.findall(rb'"bandwidth": *([1-9]\d+)', data)]):
            data += connection.recv(65536)
        assert 1e8 < measured[0] < 1e13


def a_run(folder: Path, **recipe: Any) -> Run:
    """A run of which nothing is measured yet."""
    folder.mkdir(parents=True)
    run = Run(folder)
    from archetype.io.yaml import mapping_to_yaml

    write_run_spec(run, archetype.load_spec("llama-tiny"))
    run.recipe_file.write_text(mapping_to_yaml(Recipe(steps=100, sequence_length=32, **recipe).dump(full=True)))
    return run


def test_a_runs_curves_grow_while_it_is_trained(server: Served, runs: Path) -> None:
    one, two = a_run(runs / "one", batch_size=4), a_run(runs / "deep/two", batch_size=8)
    losses = [5.0, 4.0, 4.5, float("nan"), 3.0]
    for step, loss in enumerate(losses, 1):
        append(one.metrics_file, Step(step, loss, 1e-3, 0.5 * step, 128.0, 64))
    listed = {row["name"]: row for row in ask(server, "/api/runs")["runs"]}
    assert set(listed) == {"one", "deep/two"} and two.exists
    assert (listed["one"]["step"], listed["one"]["steps"], listed["one"]["loss"]) == (5, 100, 3.0)
    assert listed["one"]["changes"] == {"batch_size": 4} and not listed["one"]["training"]
    first = ask(server, "/api/runs/one/metrics?points=2&smoothing=0.5")
    loss = first["series"]["loss"]
    assert (loss["x"], loss["min"], loss["max"], loss["mean"]) == ([3, 5], [4.0, 3.0], [5.0, 3.0], [4.5, 3.0])
    weights = [0.5**4, 0.5**3, 0.5**2, 0.5]  # of the values that are numbers
    average = sum(w * x for w, x in zip(weights, [5.0, 4.0, 4.5, 3.0], strict=True)) / sum(weights)
    assert loss["ema"][-1] == pytest.approx(average, rel=1e-12)
    assert first["series"]["gradient_norm"]["max"] == [1.5, 2.5] and first["next"] == 5
    with one.metrics_file.open("a") as file:  # a trainer that is in the middle of a line
        file.write(json.dumps({"step": 6, "sample": "<b>Once</b>"}) + "\n" + '{"step": 6, "lo')
    assert ask(server, "/api/runs/one/metrics?after=5")["series"]["loss"]["x"] == []
    with one.metrics_file.open("a") as file:
        file.write('ss": 2.5, "per_second": 128.0, "num_targets": 64}\n')
    later = ask(server, "/api/runs/one/metrics?after=5&smoothing=0.5")
    assert later["series"]["loss"]["min"] == [2.5] and later["version"] == first["version"]
    assert later["series"]["loss"]["ema"][0] != 2.5 and later["samples"] == [{"step": 6, "text": "<b>Once</b>"}]
    flops = cost_report(archetype.load_spec("llama-tiny"), 1, 32).flops["train"] / 32
    for axis, unit in {"tokens": 64, "seconds": 0.5, "flops": 64 * flops}.items():
        assert ask(server, f"/api/runs/one/metrics?x={axis}")["series"]["loss"]["x"][-1] == pytest.approx(6 * unit)
    one.metrics_file.unlink()
    append(one.metrics_file, Step(1, 9.0, 1e-3, 0.5, 128.0, 64))
    again = ask(server, "/api/runs/one/metrics")
    assert again["version"] == first["version"] + 1 and again["series"]["loss"]["mean"] == [9.0]
    details = ask(server, "/api/runs/deep/two")
    assert "batch_size: 8" in details["recipe"] and "llama-tiny" in details["spec"]
    (runs / "broken").mkdir()
    (runs / "broken/spec.yaml").write_text("kind: [")
    (runs / "broken/recipe.yaml").write_text("steps: 3")
    assert "not YAML" in next(row for row in ask(server, "/api/runs")["runs"] if row["name"] == "broken")["problem"]


def test_what_is_measured_later_of_a_step_is_not_lost(server: Served, runs: Path) -> None:
    run = a_run(runs / "evaluating")
    (lock := run.folder / ".lock").write_text(str(os.getpid()))
    for step in (1, 2):
        append(run.metrics_file, Step(step, 5.0, 1e-3, 0.5, 128.0, 64))
    first = ask(server, "/api/runs/evaluating/metrics")
    assert (first["training"], first["next"], first["series"]["loss"]["x"]) == (True, 1, [1])
    append(run.metrics_file, Sampled(2, "late"))  # after an evaluation, which takes its time
    assert ask(server, "/api/runs/evaluating/metrics?after=1")["samples"] == []
    lock.unlink()
    last = ask(server, "/api/runs/evaluating/metrics?after=1")
    assert (last["training"], last["next"], last["series"]["loss"]["x"]) == (False, 2, [2])
    assert last["samples"] == [{"step": 2, "text": "late"}]


def test_no_path_leads_out_of_the_folder(server: Served, runs: Path, tmp_path: Path) -> None:
    a_run(tmp_path / "secret")
    a_run(runs / "own")
    (runs / "link").symlink_to(tmp_path / "secret")
    for name in ("../secret", "link", "%2e%2e/secret", str(tmp_path / "secret"), "..", ".", "own/../own", "\0", "best"):
        with case(name):
            for rest in ("", "/metrics"):
                reply = server.call(f"/api/runs/{quote(name)}{rest}")
                assert reply.status == 404 and reply.error["code"] in ("run_not_found", "unknown_url")
    assert "link" not in [row["name"] for row in ask(server, "/api/runs")["runs"]]
    for query, message in {
        "points=0": "points: '0'",
        "x=age": "x: 'age' is not an axis",
        "smoothing=nan": "smoothing",
    }.items():
        assert message in server.call(f"/api/runs/own/metrics?{query}").error["message"]


def test_reports_are_listed_and_shown(server: Served, reports: Path, tmp_path: Path) -> None:
    outcome = {"version": 1, "claim": 3, "title": "Heads", "verdict": "shown", "parts": [], "effect": float("nan")}
    (reports / "claim-03.json").write_text(json.dumps(outcome))
    (reports / "claim-03.md").write_text("# Heads <script>")
    (reports / "claim-03-loss.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (reports / "damaged.json").write_text("{")
    for name in ("other.json", "claim-03-quick.json"):
        (reports / name).write_text("{}")
    (reports / "claim-03-quick-loss.svg").write_text("<svg/>")  # of another report, with a longer name
    (tmp_path / "secret.json").write_text(json.dumps(outcome))
    (reports / "link.json").symlink_to(tmp_path / "secret.json")
    rows = ask(server, "/api/reports")["reports"]
    assert rows[0] == {"name": "claim-03", "claim": 3, "title": "Heads", "verdict": "shown"}
    assert [row["name"] for row in rows] == ["claim-03", "damaged"] and "is not JSON" in rows[1]["problem"]
    report = ask(server, "/api/reports/claim-03")
    assert (report["text"], report["pictures"]) == ("# Heads <script>", ["claim-03-loss.svg"])
    assert report["report"]["effect"] is None and report["report"]["title"] == "Heads"
    picture = server.call("/api/pictures/claim-03-loss.svg")
    assert picture.headers["content-type"] == "image/svg+xml" and "default-src 'none'" in str(picture.headers)
    for name in ("../secret", "link", "%2e%2e%2fsecret", "claim-03.json", ".", "claim-03.md"):
        with case(name):
            for path in ("reports", "pictures"):
                assert server.call(f"/api/{path}/{quote(name)}").status == 404
    assert "damaged" in server.call("/api/reports/damaged").error["message"]


def test_every_value_is_averaged_whatever_is_drawn(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    values = np.random.default_rng(0).normal(size=5000)
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "loss": x}) + "\n" for n, x in enumerate(values, 1))
    )
    file.refresh()
    whole, coarse = (downsampled(file.series["loss"], "step", -1, 10_000, points, 0.99) for points in (5000, 100))
    assert whole.ema[49::50] == coarse.ema and coarse.x == whole.x[49::50]
    assert (
        coarse.min == values.reshape(100, 50).min(1).tolist() and coarse.max == values.reshape(100, 50).max(1).tolist()
    )
    parts = [downsampled(file.series["loss"], "step", after, 10_000, 50, 0.99) for after in (-1, 2500)]
    assert parts[1].ema[-1] == whole.ema[-1] and parts[1].x[0] > 2500


def test_damaged_lines_of_metrics_are_left_out(tmp_path: Path) -> None:
    good = [json.dumps({"step": step, "loss": float(step)}) for step in (1, 2, 3)]
    # also lines that would be JSON together
    for damaged in (["{"], ["[1", "2]"], ['{"step": 9, "loss": 9.0}, {"step": 9', '"loss": 9.0}'], ["", "7", "null"]):
        with case(damaged):
            (tmp_path / "metrics.jsonl").write_text("\n".join([good[0], *damaged, *good[1:]]) + "\n")
            file = MetricsFile(tmp_path / "metrics.jsonl")
            file.refresh()
            assert list(file.series["loss"].values) == [1.0, 2.0, 3.0] and file.step == 3


def test_runs_load_no_torch() -> None:
    program = "from archetype.apps.serve import engine_bar, runs; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_keys_and_hosts_are_asked_for_as_elsewhere() -> None:
    with serving({"llama": loaded("llama")}, keys=("secret",)) as served:
        for path in ("/api/runs", "/api/events", "/api/state", "/api/inspect/x/heads"):
            with case(path):
                assert served.call(path).error["code"] == "invalid_api_key"
                assert served.call(path, host="elsewhere.example").error["code"] == "host_not_allowed"
