"""Activations are recorded and set by name."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype.api.language_model import LanguageModel
from archetype.errors import DataError, SpecError
from archetype.families import preset
from archetype.generate import step
from archetype.generate.step import DecodeStep, prefill
from archetype.inspection.names import layers
from archetype.inspection.trace import Change
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.context import ForwardContext
from archetype.spec import assign
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.inspected import tracer
from tests.helpers.weights import distance, randomize

TINY = ("llama-tiny", "gpt2-tiny", "mixtral-tiny", "mamba-tiny", "deepseek-v2-tiny")
HELLO = [72, 101, 108, 108, 111]


def decoder(name: str = "llama-tiny") -> Decoder:
    model = randomize(build(preset(name)))
    assert isinstance(model, Decoder)
    return model


def logits(of: Tensor | None) -> Tensor:
    assert of is not None
    return of


@torch.no_grad()
def plain_logits(model: Decoder) -> Tensor:
    """Without gradients, as everything but training computes: other kernels serve training."""
    return logits(model(**tracer(model).inputs.arguments).logits)


def test_a_probe_without_an_observer_is_the_value_itself() -> None:
    x, module = torch.ones(2), nn.Identity()
    assert ForwardContext.of(x[None]).probe(module, "x", x) is x
    context = ForwardContext.of(x[None], observer=lambda module, name, x: x + 1)
    assert context.probe(module, "x", x).tolist() == [2, 2]


def test_what_is_set_is_what_the_model_would_compute_with_other_weights() -> None:
    model = decoder()
    shift = torch.randn(model.spec.d_model)
    ours = tracer(model).set("blocks.1.feedforward.out", lambda x: x + shift).run()
    with torch.no_grad():
        model.blocks[1].feedforward.down.bias = nn.Parameter(shift)
        theirs = model(**ours.inputs.arguments).logits
    assert distance(logits(ours.logits), theirs) < 1e-5
    for name in ("blocks.1.feedforward", "blocks.0.mixer"):
        content, model = name.rpartition(".")[2], decoder()
        ours = tracer(model).ablate(name).run()
        module = model.get_submodule(name)
        (module.down if content == "feedforward" else module.o).weight.data.zero_()
        assert torch.equal(logits(ours.logits), plain_logits(model))


def test_positions_and_heads_change_alone() -> None:
    model = decoder()
    plain = tracer(model).run()
    shown = tracer(model).ablate("blocks.1.mixer", heads=[0, 2], positions=slice(3, 5)).run()
    changed = (shown["blocks.1.mixer.heads"] != plain["blocks.1.mixer.heads"]).any(-1)[0]  # (H, T)
    assert changed.nonzero().tolist() == [[head, place] for head in (0, 2) for place in (3, 4)]
    difference = (logits(shown.logits) != logits(plain.logits)).any(-1)[0]
    assert not difference[:3].any() and difference[3:5].all()
    last = tracer(model).set("blocks.0.out", 1.0, positions=-1).run()["blocks.0.out"]
    assert (last[0, -1] == 1).all() and torch.equal(last[0, :-1], plain["blocks.0.out"][0, :-1])
    means = tracer(model).ablate("blocks.0.feedforward", mean=True).run()["blocks.0.feedforward.out"]
    assert torch.equal(means[0, 0], plain["blocks.0.feedforward.out"][0].mean(0)) and (means == means[:, :1]).all()


def test_routing_can_be_set() -> None:
    model = decoder("mixtral-tiny")
    shown = tracer(model, rows=2).set("blocks.0.feedforward.weights", 0.0, positions=2).run()
    assert (shown["blocks.0.feedforward.weights"].view(2, 9, -1)[:, 2] == 0).all()
    assert (shown["blocks.0.feedforward.out"][:, 2] == 0).all() and (shown["blocks.0.feedforward.out"][:, 3] != 0).any()


def test_more_is_recorded_by_pattern() -> None:
    model = decoder()
    assert "blocks.0.mixer.q.out" not in tracer(model).run()
    shown = tracer(model).record("blocks.*.mixer.q.out").run()
    assert all(f"blocks.{layer}.mixer.q.out" in shown for layer in range(len(model.blocks)))
    assert repr(shown).startswith("<Trace of 9 positions: ")


def test_a_source_is_seen_and_set() -> None:
    model = randomize(build(preset("t5-tiny")))
    assert isinstance(model, EncoderDecoder)
    plain = tracer(model).run()
    shown = tracer(model).set("decoder.blocks.0.cross.v", 0.0).run()
    assert (shown["decoder.blocks.0.cross.out"] == 0).all()
    assert torch.equal(shown["encoder.blocks.0.out"], plain["encoder.blocks.0.out"])
    assert not torch.equal(logits(shown.logits), logits(plain.logits))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.set("blocks.1.mixr.out", 0.0),
            "blocks.1.mixr.out: there is no such activation; did you mean blocks.1.mixer.out?",
        ),
        (lambda t: t.record("blocks.*.mixr.q"), "there is no such activation"),
        (lambda t: t.set("blocks.1.out", 0.0, heads=0), r"blocks.1.out: the shape \(B T D\) has no heads"),
        (lambda t: t.set("blocks.1.mixer.q", 0.0, heads=9), "heads 9 are out of range; use 0 to 3"),
        (lambda t: t.set("blocks.1.out", torch.ones(3)), "does not fit this value"),
        (lambda t: t.set("embedding.token_type.out", 0.0), "there is no such activation"),
    ],
)
def test_what_cannot_be_set_is_one_line(change: object, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        change(tracer(decoder())).run()  # type: ignore[operator]
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 300


def test_what_was_not_computed_is_one_line() -> None:
    model = decoder()
    model.blocks[0].add_module("unused", nn.Linear(2, 2))
    with pytest.raises(SpecError, match=r"blocks.0.unused.out: is not computed in this pass"):
        tracer(model).set("blocks.0.unused.out", 0.0).run()
    with pytest.raises(SpecError, match=r"blocks.0.unusd.out: was not recorded"):
        tracer(model).run()["blocks.0.unusd.out"]


def test_nothing_stays_after_a_pass() -> None:
    """Neither after one that fails nor in another thread while it runs."""
    model, elsewhere = decoder(), []
    plain = logits(tracer(model).run().logits)

    def other(x: Tensor) -> Tensor:
        run = threading.Thread(target=lambda: elsewhere.append(plain_logits(model)))
        run.start()
        run.join()
        elsewhere.append(plain_logits(model))  # a change may call the model
        return x * 0

    shown = tracer(model).set("blocks.0.out", other).run()
    assert len(elsewhere) == 2 and all(torch.equal(one, plain) for one in elsewhere)
    assert not torch.equal(logits(shown.logits), plain)
    with pytest.raises(SpecError):
        tracer(model).set("blocks.0.out", torch.ones(3)).run()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(plain_logits(model), plain) and model.observer is None


def test_a_trace_and_recorded_steps_do_not_meet() -> None:
    """A step that is recorded within a trace has nothing of its changes, and replays beside it."""
    for name in TINY:
        model = decoder(name)

        def decode(model: Decoder = model) -> Tensor:
            state, _ = prefill(model, [[3, 1, 4]], model.new_state(1, 8))[::-1]
            step = DecodeStep(model, state)
            return torch.stack([step(torch.tensor([[5]])).clone() for _ in range(3)])

        expected, within = decode(), []

        def change(x: Tensor, decode: object = decode, within: list[Tensor] = within) -> Tensor:
            within.append(decode())  # type: ignore[operator]
            return x * 0

        tracer(model).set("blocks.0.mixer.out", change).run()
        with case(name):
            assert torch.equal(within[0], expected) and torch.equal(decode(), expected)


@torch.no_grad()
def test_generation_under_changes_is_the_plain_one_where_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text with an activation set to itself is that of the engine, and its logits are the same to the bit."""
    monkeypatch.setattr(step, "library", lambda: None)  # steps of torch, as those that are observed
    for name in (*TINY, "lstm-tiny", "megabyte-tiny", "ngram-tiny", "t5-tiny"):
        with case(name):
            lm, logits = bytes_model(name), list[list[Tensor]]()
            settings = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}
            source: dict[str, Any] = {"target": [0]} if name == "t5-tiny" else {}
            point = "hidden.0.out" if name == "ngram-tiny" else f"{[*layers(lm.model)][-1]}.out"
            traces = [lm.trace(HELLO, *source.values()) for _ in range(2)]
            traces[1].set(point, lambda x: x.clone())
            texts = []
            for trace in traces:
                logits.append([])
                keep = lm.model.register_forward_hook(lambda _, __, output, all=logits[-1]: all.append(output.logits))
                texts.append(trace.generate(**settings))
                keep.remove()
            plain = lm.engine().submit(HELLO, **source, **settings).result()
            assert texts == [plain, plain] and len(logits[0]) == len(logits[1]) >= 12 and lm.model.observer is None
            assert all(torch.equal(a, b) for a, b in zip(*logits, strict=True))
            assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())


def bytes_model(name: str) -> LanguageModel:
    """A tiny preset of bytes with random weights."""
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (0,)
    spec = assign(preset(name), ["vocab_size=257"])
    return LanguageModel(spec, randomize(build(spec), seed=4).eval(), tokenizer)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_change_holds_in_every_pass_of_a_generation() -> None:
    """As if the weights were others; and at positions only where these are read."""
    lm, settings = bytes_model("llama-tiny"), {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    plain, steered = lm.trace(HELLO).generate(**settings), lm.trace(HELLO).ablate("blocks.1.feedforward")
    text = steered.generate(**settings)
    weight: Tensor = lm.model.get_submodule("blocks.1.feedforward.down").weight  # type: ignore[assignment]
    weight.zero_()
    assert lm.engine().submit(HELLO, **settings).result() == text != plain
    lengths: dict[str, list[int]] = {"all": [], "last": [], "from": []}

    def note(name: str) -> Change:
        return lambda x: (lengths[name].append(x.shape[1]), x)[1]

    trace = lm.trace(HELLO).set("blocks.0.out", note("all")).set("blocks.0.out", note("last"), positions=-1)
    trace.set("blocks.0.out", note("from"), positions=slice(3, None)).generate(**settings)
    assert lengths == {"all": [5] + [1] * 11, "last": [1], "from": [2] + [1] * 11}
    with pytest.raises(SpecError, match="is not computed during generation"):
        lm.trace(HELLO).set("blocks.0.mixer.q", 0.0).generate(**settings)
    with pytest.raises(SpecError, match="does not generate text"):
        lm_of_classes = bytes_model("bert-tiny")
        lm_of_classes.trace(HELLO).generate()
    with pytest.raises(SpecError, match="positions: differ between patches and text"):
        bytes_model("megabyte-tiny").trace(HELLO).set("global_model.blocks.0.out", 0.0, positions=1).generate()


def test_a_pair_without_a_tokenizer_reads_ids() -> None:
    """A tensor of the target has its start already; a list needs a tokenizer, which says what starts a target."""
    model = randomize(build(preset("transformer-tiny")))
    lm = LanguageModel(model.spec, model)
    source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 5]])
    with torch.no_grad():
        expected = logits(model(target, source=source).logits)
    assert torch.equal(logits(lm.trace(source, target=target).run().logits), expected)
    with pytest.raises(DataError, match="tokenizer: the model's folder has no tokenizer"):
        lm.trace(source, target=[5])
