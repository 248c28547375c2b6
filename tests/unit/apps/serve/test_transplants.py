"""POST /api/transplant: the report of a transplant that nothing keeps, next to requests that go on."""

import gc
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import archetype
from archetype import LanguageModel
from archetype.apps.serve import transplants
from archetype.apps.serve.exchange import finite
from archetype.apps.serve.models import Source
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.spec.edit import assign
from archetype.spec.serialize import to_yaml
from archetype.surgery import operation
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.serving import Served, serving
from tests.helpers.weights import randomize

PATH = "/api/transplant"
TEXT = "a cat, a cat and a dog"
FEWER = ["layers[*].mixer.num_kv_heads=1"]
SHORT = ["vocab_size=257", "context_length=32"]


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The server is on this machine."""


def tiny(name: str) -> LanguageModel:
    """A model of bytes with random weights."""
    spec = assign(archetype.load_spec(name), SHORT)
    return LanguageModel(spec, randomize(build(spec), seed=5).eval(), train_tokenizer("bytes", [], None))


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    """A model whose first layer changes little."""
    lm = tiny("llama-tiny")
    with torch.no_grad():
        for parameter in lm.model.get_submodule("blocks.0").parameters():
            parameter.mul_(0.1)
    return lm


@pytest.fixture(scope="module")
def server(lm: LanguageModel) -> Iterator[Served]:
    sources = [Source("llama", "llama-tiny"), Source("bert", "bert-tiny", on_demand=True)]
    with serving({"llama-tiny": lm, "bert-tiny": tiny("bert-tiny")}, sources=sources) as served:
        yield served


def ask(server: Served, **body: Any) -> Any:
    reply = server.call(PATH, body)
    assert reply.status == 200, reply.body
    return reply.json


def test_shapes_are_answered_without_loading_the_model(server: Served) -> None:
    answer = ask(server, model="bert", changes=["layers[0].feedforward.d_ff=100", "name=my bert"])
    assert [model.name for model in server.app.models.loaded] == ["llama"]
    report = answer["report"]
    spec = archetype.load_spec("bert-tiny")
    before = archetype.cost_report(spec).parameters["total"]
    assert report["costs"]["parameters"]["before"] == before and report["proof"] is None and answer["rows"] == []
    cut = "blocks.0.feedforward.down.weight"
    assert report["tensors"][cut]["how"] == "cut" and report["tensors"][cut]["sources"] == [cut]
    assert answer["sizes"][cut] == answer["donated"][cut] == 100 * spec.d_model  # type: ignore[attr-defined]
    assert sum(answer["sizes"].values()) >= report["costs"]["parameters"]["after"]
    assert answer["command"] == (
        "archetype transplant bert-tiny 'layers[0].feedforward.d_ff=100' 'name=my bert' --to runs/my-bert"
    )


def test_entries_that_are_new_are_counted(server: Served, lm: LanguageModel) -> None:
    wider = ask(server, changes=["layers[1].feedforward.d_ff=200", *FEWER], layers="0-1", ways=["heads=first"])
    grown = "blocks.1.feedforward.up.weight"
    assert wider["report"]["tensors"][grown]["how"] == "grown"
    assert (wider["sizes"][grown], wider["donated"][grown]) == (200 * 64, lm.model.get_parameter(grown).numel())
    assert wider["command"].endswith("--layers 0-1 --with heads=first --to runs/llama-tiny")
    linear = ask(server, changes=["layers[1].mixer=mamba"])
    new = {name for name, count in linear["donated"].items() if count == 0}
    assert new == {name for name in linear["sizes"] if name.startswith("blocks.1.mixer.")}


def test_the_comparison_is_that_of_python_and_the_served_model_stays(server: Served, lm: LanguageModel) -> None:
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    known = archetype.transplant(lm, FEWER, text=TEXT)
    yaml = to_yaml(known.model.spec)
    for new in ({"changes": FEWER}, {"source": yaml}):
        with case(new):
            answer = ask(server, model="llama", compare=True, text=TEXT, **new)
            assert answer["report"] == finite(known.report.record())
            (row,) = answer["rows"]
            assert "".join(row["tokens"]) == TEXT
            proof = known.report.proof
            assert proof is not None and proof.divergence > 1e-4
            assert sum(row["kl"]) / len(row["kl"]) == pytest.approx(proof.divergence, rel=1e-3)
            tokens = torch.tensor([lm.tokenizer.encode(TEXT)])  # type: ignore[union-attr]
            for side, model in (("before", lm.model), ("after", known.model.model)):
                shares = model(tokens).logits[0, -1].detach().softmax(-1)
                shown = row["next"][-1]
                assert max(shown[side]) == pytest.approx(float(shares.max()), rel=1e-3)
                assert len(shown["tokens"]) == len(shown[side]) >= transplants.TOP
    del known, model, shares
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())
    assert not any(block._forward_hooks for block in lm.model.blocks)  # type: ignore[union-attr]
    assert transplanted(lm) == 0 and server.app.models.memory._held == 0


def transplanted(lm: LanguageModel) -> int:
    """How many models with the merged heads exist."""
    gc.collect()
    spec = assign(lm.spec, FEWER)
    models = [thing for thing in gc.get_objects() if type(thing) is Decoder and thing.device.type != "meta"]
    return sum(model.spec == spec for model in models)


def test_layers_are_chosen_by_their_influence_on_the_text(
    server: Served, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Python, with and without the comparison; the text is read once, and the command names the layers."""
    known = archetype.transplant(lm, ["num_layers=1"], text=TEXT, layers="influence").report
    assert known.layers == (1,)  # spread evenly, it would be layer 0
    read, influences = [], transplants.influences

    def counted(*arguments: Any) -> list[float]:
        read.append(arguments)
        return influences(*arguments)

    monkeypatch.setattr(transplants, "influences", counted)
    for compare in (False, True):
        answer = ask(server, model="llama", changes=["num_layers=1"], layers="influence", text=TEXT, compare=compare)
        assert answer["report"]["layers"] == [1] and " --layers 1 " in answer["command"]
    assert answer["report"] == finite(known.record()) and len(read) == 1
    first = ask(server, model="llama", changes=["num_layers=1"], layers="first")
    assert first["report"]["layers"] == [0] and " --layers 0 " in first["command"] and len(read) == 1


def test_wrong_specifications_are_answers_with_their_place(server: Served) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "layers[0].mixer.num_hads": {"changes": ["layers[0].mixer.num_hads=2"]},
        "layers[0].mixer.num_kv_heads": {"changes": ["layers[*].mixer.num_kv_heads=many"]},
        "kind": {"source": to_yaml(archetype.load_spec("bert-tiny"))},
        "": {"source": "kind: ["},
        "--layers": {"changes": [], "layers": "0-9"},
        "--layer": {"changes": ["num_layers=1"], "layers": "best"},
        "--laye": {"changes": [], "layers": "influence"},
        "--with heads": {"changes": FEWER, "ways": ["heads=median"]},
        "layers": {"changes": ["num_layers=600"]},
        "specification": {"changes": ["layers[0].feedforward.d_ff=5000000"]},
    }
    for path, body in wrong.items():
        for compare in (False, True):
            with case(body, compare):
                answer = ask(server, model="llama", compare=compare, text=TEXT, **body)
                (problem, *_) = answer["problems"]
                assert answer["ok"] is False and problem["path"].startswith(path)
                assert problem["message"] and (problem["remedy"] or path == "")
    answer = ask(server, model="bert", changes=["num_layers=1"], layers="influence")
    assert answer["problems"][0]["message"] == "this model continues no text"
    refused: dict[str, dict[str, Any]] = {
        "send either source or changes": {"changes": FEWER, "source": "kind: decoder"},
        "source: send either": {},
        "fewer than two tokens": {"changes": FEWER, "compare": True, "text": "a"},
        "predicts no next token": {"model": "bert", "changes": [], "compare": True},
        "no served model is named": {"model": "other", "changes": []},
    }
    for message, body in refused.items():
        with case(body):
            assert message in server.call(PATH, body).error["message"]


def test_packed_models_are_planned_and_not_compared() -> None:
    with serving({"llama-tiny": tiny("llama-tiny").pack("int8")}) as served:
        for body in ({"changes": FEWER}, {"changes": ["num_layers=1"], "layers": "influence", "text": TEXT}):
            assert "report" in served.call(PATH, body).json
            error = served.call(PATH, body | {"compare": True}).error
            assert "has packed matrices, which cannot be changed; serve the unpacked model" in error["message"]


def test_a_model_that_does_not_fit_is_refused_before_it_is_made(lm: LanguageModel) -> None:
    body = {"changes": ["num_layers=12", "layers[*].feedforward.d_ff=100000"], "compare": True, "text": TEXT}
    with serving({"llama-tiny": lm}, memory_bytes=2**29) as served:
        error = served.call(PATH, body).error
        assert "comparison with a new model takes 880 MiB" in error["message"] and "--memory" in error["message"]
        assert "report" in served.call(PATH, body | {"compare": False}).json
        assert served.app.models.memory._held == 0


def test_other_requests_go_on_and_a_client_may_leave(
    server: Served, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    fill = operation.fill

    def slow(donor: Any, *arguments: Any) -> Any:
        if donor.device.type != "meta":
            begun.set()
            assert go_on.wait(30)
        return fill(donor, *arguments)

    monkeypatch.setattr(transplants, "fill", slow)
    monkeypatch.setattr(transplants, "bytes_of_pass", lambda spec, length: 2**20)
    memory = server.app.models.memory
    with server.connect() as client:
        server.send(client, PATH, {"model": "llama", "changes": FEWER, "compare": True, "text": TEXT})
        assert begun.wait(30)
        written = server.call("/v1/completions", {"model": "llama", "prompt": "a", "max_tokens": 3, "ignore_eos": True})
        assert written.json["usage"]["completion_tokens"] == 3
        assert memory._held > 2**20
    wait_until(lambda: server.app.models._entries["llama"].num_users == 0)
    assert memory._held > 2**20  # the thread still makes the model
    go_on.set()
    wait_until(lambda: memory._held == 0)
    assert transplanted(lm) == 0 and math.isfinite(server.unfinished())


def wait_until(holds: Any) -> None:
    """Wait, but not forever."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)
