"""Views: their numbers, tables, pictures and files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from archetype.api.language_model import LanguageModel
from archetype.errors import ArchetypeError, SpecError
from archetype.families import preset
from archetype.inspection.attention import AttentionHead, AttentionView, head_statistics
from archetype.inspection.names import layer_path
from archetype.inspection.recurrent import state_norms
from archetype.inspection.view import SUFFIXES
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.parts.recurrent.inspect import gates
from archetype.tokenizers.bytes import ByteTokenizer
from tests.helpers.cases import case
from tests.helpers.combinations import combined
from tests.helpers.inspected import inputs, inspection
from tests.helpers.weights import distance, randomize

VIEWS = {
    "llama-tiny": {"attention", "lens", "residual", "attribution"},
    "bert-tiny": {"attention", "lens", "residual"},
    "t5-tiny": {"attention", "lens", "residual", "attribution"},
    "mixtral-tiny": {"attention", "lens", "residual", "experts", "attribution"},
    "mamba-tiny": {"lens", "residual", "recurrent", "attribution"},
    "lstm-tiny": {"lens", "residual", "recurrent"},
    "ngram-tiny": {"recurrent"},
    "megabyte-tiny": {"attention", "lens", "residual", "recurrent"},
    "vit-tiny": {"attention", "lens", "residual"},
}


def test_each_kind_of_model_has_its_views(tmp_path: Path) -> None:
    """And every one of them is written in every format."""
    for name, views in VIEWS.items():
        shown = inspection(randomize(build(preset(name))))
        with case(name):
            assert set(shown.views) == {"summary"} | views
            for view in shown.views:
                one = shown.view(view)
                assert str(one) and "<table>" in one._repr_html_()
                json.dumps(one.record(), allow_nan=False)
                one.save(tmp_path / "tensors.safetensors")
                assert load_file(tmp_path / "tensors.safetensors")


def test_a_view_is_written_in_the_format_of_its_name(tmp_path: Path) -> None:
    head = inspection(randomize(build(preset("llama-tiny")))).attention(1, 2)
    for suffix, beginning in zip(SUFFIXES, (b"\x89PNG", b"<?xml", b"{", b""), strict=True):
        head.save(tmp_path / f"head{suffix}")
        assert (tmp_path / f"head{suffix}").read_bytes().startswith(beginning)
    assert torch.equal(load_file(tmp_path / "head.safetensors")["weights"], head.tensors()["weights"])
    with pytest.raises(SpecError, match="has an unknown suffix; use one of"):
        head.save(tmp_path / "head.pdf")


def test_heads_are_scored() -> None:
    """By maps that do one thing each."""
    ids, length = torch.tensor([5, 6, 7, 5, 6, 7]), 6
    previous = torch.eye(length).roll(1, 0)
    previous[0] = torch.eye(length)[0]
    first = torch.zeros(length, length)
    first[:, 0] = 1
    induction = torch.eye(length)[[0, 1, 2, 1, 2, 3]]
    even = torch.ones(length, length) / length
    scores = head_statistics(torch.stack((previous, first, induction, even)), ids)
    assert scores["previous"].tolist()[:2] == pytest.approx([1.0, 0.2]) and scores["first"][1] == 1
    assert scores["induction"].tolist()[:3] == [0.0, 0.0, 1.0]
    assert scores["distance"][0] == pytest.approx(5 / 6) and scores["distance"][1] == 2.5
    assert scores["entropy"].tolist() == pytest.approx([0, 0, 0, math.log(6)])
    assert head_statistics(even[None], torch.arange(length))["induction"].isnan()


def test_attention_is_chosen_by_layer_and_head() -> None:
    shown = inspection(randomize(build(preset("t5-tiny"))))
    whole, cross = shown.attention(), shown.attention("decoder.blocks.0.cross", 1)
    assert isinstance(whole, AttentionView) and isinstance(cross, AttentionHead)
    assert cross.weights.shape == (6, 9) and distance(cross.weights.sum(-1), torch.ones(6)) < 1e-5
    assert shown.attention(-1).paths == ["decoder.blocks.1.mixer"]  # type: ignore[attr-defined]
    assert layer_path(shown.trace.model, "encoder.blocks.1") == "encoder.blocks.1"
    assert all(len(view.paths) == 1 for view in (shown.attention("encoder.blocks.0"),))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "look", "message"),
    [
        ("llama-tiny", lambda i: i.attention(9), "layer: 9 is out of range; use 0 to 1"),
        ("llama-tiny", lambda i: i.attention("blocks.1x"), "layer: blocks.1x is not a layer; did you mean blocks.1?"),
        ("llama-tiny", lambda i: i.attention(0, 9), "head: 9 is out of range; use 0 to 3"),
        ("llama-tiny", lambda i: i.view("lenz"), "view: 'lenz' is not a view; did you mean lens?"),
        ("llama-tiny", lambda i: i.view("lens", head=1), "the view lens has no heads"),
        ("llama-tiny", lambda i: i.experts(), "the model has no mixture of experts"),
        ("llama-tiny", lambda i: i.recurrent(), "the only memory is keys and values"),
        ("llama-tiny", lambda i: i.attribution(position=99), "position: 99 is out of range; use 0 to 8"),
        ("mamba-tiny", lambda i: i.attention(), "this model has no attention"),
        ("bert-tiny", lambda i: i.attribution(), "attribution: "),
        ("ngram-tiny", lambda i: i.lens(), "has no layers before a head"),
    ],
)  # fmt: skip
def test_what_a_model_has_not_is_one_line(name: str, look: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        look(inspection(randomize(build(preset(name)))))
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300


def test_ranks_and_distances_of_the_lens() -> None:
    shown = inspection(randomize(build(preset("llama-tiny"))))
    lens, logits = shown.lens(3), shown.trace.logits
    assert logits is not None and shown.trace.inputs.ids is not None
    logp, ids = logits[0].log_softmax(-1), shown.trace.inputs.ids[0]
    assert lens.answers.shape == (3, 9, 3) and (lens.kl[-1] == 0).all() and (lens.kl[0] > 0).all()
    assert torch.equal(lens.answers[-1, :, 0], logits[0].argmax(-1))
    order = logp.argsort(-1, descending=True)
    expected = [order[place].tolist().index(int(ids[place + 1])) for place in range(8)]
    assert lens.ranks[-1].tolist() == [*expected, -1]
    assert distance(lens.entropy[-1], -(logp.exp() * logp).sum(-1)) < 1e-5


def test_shares_sum_to_one() -> None:
    shown = inspection(randomize(build(preset("llama-tiny"))))
    residual, trace = shown.residual(), shown.trace
    for layer in range(2):
        before, after = trace[f"blocks.{layer}.in"][0], trace[f"blocks.{layer}.out"][0]
        own = (before * after).sum(-1) / after.square().sum(-1)
        assert distance(own + sum(share[layer] for share in residual.shares.values()), torch.ones(9)) < 1e-4
    assert distance(residual.norms[1], trace["blocks.0.out"][0].norm(dim=-1)) < 1e-6


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_are_those_of_the_cell(kind: str) -> None:
    """The output follows from them by the cell's own equations."""
    model = randomize(build(combined({"mixer": kind})))
    trace = inspection(model).trace
    path, x, y = "blocks.0.mixer", trace["blocks.0.mixer.in"], trace["blocks.0.mixer.out"]
    cell, of = model.get_submodule(path).cell, gates(trace.part(path))
    h = c = torch.zeros_like(y[:, 0])
    for place in range(x.shape[1]):
        inner, outer = x[:, place] @ cell.weight_ih_l0.T + cell.bias_ih_l0, h @ cell.weight_hh_l0.T + cell.bias_hh_l0
        gate = {name: values[:, place] for name, values in of.items()}
        size = cell.hidden_size
        new = slice(2 * size, 3 * size)
        if kind == "lstm":
            c = gate["forget"] * c + gate["input"] * torch.tanh(inner[:, new] + outer[:, new])
            h = gate["output"] * torch.tanh(c)
        else:
            h = torch.lerp(torch.tanh(inner[:, new] + gate["reset"] * outer[:, new]), h, gate["update"])
        assert distance(h, y[:, place]) < 1e-5


def test_states_are_those_after_each_position() -> None:
    for kind in ("mamba", "mamba2", "delta-net", "short-convolution", "rnn", "lstm", "gru"):
        model = randomize(build(combined({"mixer": kind})))
        trace = inspection(model).trace
        mixer, x = model.blocks[0].mixer, trace["blocks.0.mixer.in"]
        state = mixer.new_state(1, 16, x.dtype, x.device)
        with torch.no_grad():
            mixer(x, ForwardContext.of(x, torch.zeros(1, dtype=torch.long)), state)
        norms = state_norms(trace, "blocks.0.mixer")
        with case(kind):
            assert set(norms) == {name for _, name, _ in state.tensors()}
            for _, name, tensor in state.tensors():
                assert distance(norms[name][:, -1], tensor.flatten(1).norm(dim=1)) < 1e-5


def test_experts_are_those_that_computed() -> None:
    shown = inspection(randomize(build(preset("mixtral-tiny"))))
    (routing, *_) = shown.experts().routings
    mixture = shown.trace.model.get_submodule(routing.path)
    x = shown.trace[f"{routing.path}.in"][0]
    outputs = torch.stack(
        [mixture.experts(x, torch.full((9, 1), e), torch.ones(9, 1)) for e in range(len(routing.load))]
    )
    mixed = torch.einsum("ne,end->nd", routing.gates, outputs)
    assert distance(mixed, shown.trace[f"{routing.path}.out"][0]) < 1e-5
    assert float(routing.load.sum()) == pytest.approx(1) and ((routing.gates > 0).sum(1) == 2).all()


def test_patching_restores_where_the_texts_differ() -> None:
    """Before the differing token nothing; the last layer at the last position everything."""
    model = randomize(build(preset("llama-tiny")))
    clean = inspection(model)
    corrupt = inputs(model)
    for id in range(256):
        corrupt.arguments["tokens"][0, 4:6] = id
        if int(model(**corrupt.arguments).logits[0, -1].argmax()) != int(clean.trace.logits[0, -1].argmax()):  # type: ignore[index]
            break
    view = clean.patching(corrupt)
    assert view.effects.shape == (2, 9) and view.effects[:, :4].abs().max() < 1e-5
    assert view.effects[-1, -1] == pytest.approx(1, abs=1e-4) and view.effects[-1, :-1].abs().max() < 1e-5
    assert view.effects[0, 4:].abs().max() > 1e-3
    assert str(view) and json.dumps(view.record()) and view.draw()
    with pytest.raises(SpecError, match="both texts have the answer"):
        clean.patching(clean.trace.inputs)


def test_a_language_model_inspects_texts_ids_and_pictures() -> None:
    lm = LanguageModel(preset("llama-tiny"), randomize(build(preset("llama-tiny"))), ByteTokenizer())
    shown = lm.inspect("ab ab")
    assert shown.max_logit_difference == 0.0 and len(shown.trace.inputs.tokens) == 5
    assert torch.equal(lm.trace([97, 98]).run().logits, lm.trace("ab").run().logits)  # type: ignore[arg-type]
    assert "5 positions of a decoder" in repr(shown) and "attention" in shown.views
    assert shown.attribution("b").name == "b"
    rows = lm.trace(torch.tensor([[1, 2, 3], [4, 5, 6]])).run()
    assert rows.logits is not None and rows.logits.shape[:2] == (2, 3)
    picture = LanguageModel(preset("vit-tiny"), randomize(build(preset("vit-tiny"))), labels=("cat",))
    side = picture.spec.image_size  # type: ignore[union-attr]
    assert picture.inspect(torch.randn(picture.spec.num_channels, side, side)).lens().layers[0] == "embedding"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda lm: lm.inspect(""), "text: has 0 tokens, but the model accepts 1 to"),
        (lambda lm: lm.inspect("a" * 5000), "text: has 5000 tokens"),
        (lambda lm: lm.inspect([7, 999]), "text: has an id outside 0 to 255"),
        (lambda lm: lm.inspect("a", "b"), "target: applies to encoder-decoders only"),
        (lambda lm: lm.inspect("abc").attribution("ab"), "token: 'ab' is 2 tokens"),
    ],
)
def test_texts_that_cannot_be_read_are_one_line(ask: Any, message: str) -> None:
    lm = LanguageModel(preset("llama-tiny"), build(preset("llama-tiny")).eval(), ByteTokenizer())
    with pytest.raises(ArchetypeError, match=message):
        ask(lm)
