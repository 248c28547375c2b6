"""Attention to the keys of an earlier layer: what a plain model computes whose keys and values are patched."""

import copy
import math
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

import archetype
from archetype import Engine, LanguageModel, spec
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.memory import MemoryCost
from archetype.estimate.report import cost_report
from archetype.generate.step import DecodeStep, prefill
from archetype.models.build import build
from archetype.models.cost import model_cost
from archetype.models.decoder.module import Decoder
from archetype.nn.shared_rows import PositionShares
from archetype.tokenizers import train_tokenizer
from archetype.training.block_execution import recompute_blocks
from archetype.training.parallel.layout import Parallel
from archetype.training.recipe import Recipe
from tests.helpers.inspected import inspection, tracer
from tests.helpers.kernels import kernels
from tests.helpers.specs import ATTENTION, INDEX, block, decoder, encoder, pair
from tests.helpers.weights import distance, randomize

WINDOW, ROTARY = {"kind": "window", "size": 5}, {"kind": "rotary"}
TOKENS = torch.randint(31, (3, 20), generator=torch.Generator().manual_seed(1))
EXACT, WRONG = 1e-12, 1e-2  # of the largest magnitude, in float64
ANGLES = 1e-5  # as much as angles of rotations in float32 make of it


def layer(pattern: str | dict[str, Any] = "full", **mixer: Any) -> dict[str, Any]:
    """A layer of Gemma 3n without what is looked up by token."""
    attention = ATTENTION | {"pattern": pattern, "position": ROTARY, "qk_norm": "rms", "scale": 1.0}
    feedforward = {"kind": "gated", "d_ff": 20, "activation": "gelu_tanh"}
    return block(wiring={"kind": "sandwich", "norm": "rms"}, mixer=attention | mixer, feedforward=feedforward)


def gemma(window: int | None = 3, full: int | None = 4, **changes: Any) -> spec.ModelSpec:
    """Four layers with a window to one that sees all, twice; the last five read the keys of the last of their kind."""
    readers = [*4 * [layer(WINDOW, keys_from=window)], layer(keys_from=full)]
    return decoder(*4 * [layer(WINDOW)], layer(), *readers, **changes)


def yoco(source: int | None = 2) -> spec.ModelSpec:
    """Windows first; then a layer that sees all, and the layers that read its keys."""
    window, full = (block(mixer=ATTENTION | {"position": ROTARY, "pattern": pattern}) for pattern in (WINDOW, "full"))
    return decoder(window, window, full, *2 * [full | {"mixer": full["mixer"] | {"keys_from": source}}])


def built(model: spec.ModelSpec, dtype: torch.dtype = torch.float64) -> Decoder:
    module = randomize(build(model, dtype=dtype))
    assert isinstance(module, Decoder)
    return module


@torch.no_grad()
def whole(model: Decoder, tokens: Tensor = TOKENS) -> Tensor:
    logits = model(tokens).logits
    assert logits is not None
    return logits


# what is computed


def rms(x: Tensor, norm: Any) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def rotated(x: Tensor) -> Tensor:
    """Pairs of features of the two halves, turned by the position over 10000^(2i/P)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2]).double()[:, None] * 10000.0 ** -(torch.arange(half).double() / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


def written_out(model: Decoder, reads: dict[int, int], windows: set[int], is_gemma: bool) -> Tensor:
    """Logits of the tokens, of a model whose layers `reads` names read the keys of others."""
    x, left, steps = model.embedding.token.weight[TOKENS], {}, torch.arange(TOKENS.shape[1])
    for index, one in enumerate(model.blocks):
        mixer, ff, h = one.mixer, one.feedforward, rms(x, one.mixer_norm)

        def heads(projection: Any, norm: Any, h: Tensor = h) -> Tensor:
            y = (h @ projection.weight.T).unflatten(-1, (-1, 4)).transpose(1, 2)
            return rotated(rms(y, norm) if is_gemma else y)

        q = heads(mixer.q, mixer.q_norm)
        if index not in reads:
            v = (h @ mixer.v.weight.T).unflatten(-1, (-1, 4)).transpose(1, 2)
            left[index] = heads(mixer.k, mixer.k_norm), v
        k, v = (y.repeat_interleave(2, dim=1) for y in left[reads.get(index, index)])
        ago = steps[:, None] - steps
        seen = (ago >= 0) & ((ago < 5) if index in windows else True)
        scores = q @ k.transpose(2, 3) * (1.0 if is_gemma else 1 / math.sqrt(4))
        y = (scores.masked_fill(~seen, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2) @ mixer.o.weight.T
        x = x + (rms(y, one.mixer_post_norm) if is_gemma else y)
        h = rms(x, one.feedforward_norm)
        gate = h @ ff.gate.weight.T
        y = ((gelu(gate, approximate="tanh") if is_gemma else silu(gate)) * (h @ ff.up.weight.T)) @ ff.down.weight.T
        x = x + (rms(y, one.feedforward_post_norm) if is_gemma else y)
    return rms(x, model.final_norm) @ model.lm_head.weight.T


@torch.no_grad()
def test_a_gemma_3n_and_a_yoco_are_as_written_out() -> None:
    gemmas, windows = {5: 3, 6: 3, 7: 3, 8: 3, 9: 4}, {0, 1, 2, 3, 5, 6, 7, 8}
    assert distance(whole(built(gemma())), written_out(built(gemma()), gemmas, windows, True)) < ANGLES
    assert distance(whole(built(gemma(2))), written_out(built(gemma()), gemmas, windows, True)) > WRONG
    assert distance(whole(built(yoco())), written_out(built(yoco()), {3: 2, 4: 2}, {0, 1}, False)) < ANGLES


@pytest.mark.parametrize("family", [gemma, yoco])
def test_a_reader_computes_what_a_plain_layer_does_with_the_other_layers_keys(family: Any) -> None:
    without = family(None, None) if family is gemma else family(None)
    reading, plain = (built(model, torch.float32) for model in (family(), without))
    missing = plain.load_state_dict(reading.state_dict(), strict=False)
    names = {name.split(".mixer.")[1] for name in missing.missing_keys}
    assert names == {"k.weight", "v.weight", *["k_norm.weight"] * (family is gemma)} and not missing.unexpected_keys
    trace = tracer(reading).run()
    changed = tracer(plain)
    for reader in range(len(plain.blocks) // 2 + (family is yoco), len(plain.blocks)):
        source = reading.spec.layers[reader].mixer.keys_from
        for name in "kv":
            changed.set(f"blocks.{reader}.mixer.{name}", trace[f"blocks.{source}.mixer.{name}"])
    patched, unpatched = changed.run().logits, tracer(plain).run().logits
    assert trace.logits is not None and patched is not None and torch.equal(trace.logits, patched)
    assert unpatched is not None and distance(trace.logits, unpatched) > WRONG


def test_no_reader_changes_no_bit() -> None:
    """Keys of its own, said with null, are what a file without the field says."""
    plain = decoder(layer(), layer())
    assert decoder(layer(), layer(keys_from=None)) == plain and "keys_from" not in str(plain.dump())


def test_layers_are_named_from_the_start_or_counted_back() -> None:
    back = decoder(layer(), layer(keys_from=-1), layer(keys_from=-2))
    named = decoder(layer(), layer(keys_from=0), layer(keys_from=0))
    assert torch.equal(whole(built(back)), whole(built(named)))
    pairs = decoder(*2 * [layer(), layer(keys_from=-1)])
    assert pairs.dump()["layers"][0]["repeat"] == 2  # each reads its own neighbour, in one group of a file
    named = decoder(layer(), layer(keys_from=0), layer(), layer(keys_from=2))
    assert torch.equal(whole(built(pairs)), whole(built(named)))


def test_a_repetition_reads_the_keys_of_its_own_turn() -> None:
    own, reader = layer(), layer(keys_from=-1)
    shared = spec.parse(gemma().dump() | {"layers": [{"repeat": 2, "shared": True, "blocks": [own, reader]}]})
    model, copy = built(shared), built(decoder(own, reader, own, reader))
    weights = model.state_dict()
    copy.load_state_dict({**weights, **{
        name.replace(f"blocks.{index}.", f"blocks.{index + 2}."): weight
        for name, weight in weights.items() for index in (0, 1) if f"blocks.{index}." in name
    }})  # fmt: skip
    assert torch.equal(whole(model), whole(copy))


def test_an_encoder_reads_keys_too() -> None:
    mixer = {"kind": "attention", "num_heads": 4}
    layers = [block(mixer=mixer | more) for more in ({}, {"keys_from": 0}, {"keys_from": 0})]
    model = randomize(build(encoder(layers=layers, final_norm="rms"), dtype=torch.float64)).requires_grad_(False)
    together = model(TOKENS, num_tokens=torch.tensor([20, 7, 12])).hidden
    assert together is not None and distance(together[1, :7], model(TOKENS[1:2, :7]).hidden[0]) < EXACT


# states, and steps


def test_only_layers_with_keys_of_their_own_keep_a_state() -> None:
    model = gemma()
    state = built(model, torch.float32).new_state(2, 20)
    assert [layer.nbytes > 0 for layer in state.layers] == 5 * [True] + 5 * [False]
    assert state.nbytes == cost_report(model, 2, 20, "float32").state["bytes"]
    assert 2 * state.nbytes == cost_report(gemma(None, None), 2, 20, "float32").state["bytes"]


@pytest.mark.shapes
@pytest.mark.parametrize("cuts", [[20], [5, 6, 13, 20], list(range(1, 21))])
def test_a_text_in_pieces_is_the_whole_text(cuts: list[int]) -> None:
    model = built(gemma())
    state, start, expected = model.new_state(3, 24), 0, whole(model)
    for end in cuts:
        with torch.no_grad():
            output = model(TOKENS[:, start:end], state.narrow(end))
        assert distance(output.logits, expected[:, start:end]) < EXACT
        state, start = output.state, end


@pytest.mark.parametrize("changes", [{}, {"softcap": 5.0}, {"sinks": True}, {"position": "alibi"}])
def test_recorded_steps_read_the_other_layers_cache(changes: dict[str, Any]) -> None:
    """Rows of different lengths, beyond the window; some of what is recorded attends to caches that others fill."""
    kernels("native")
    mixers = layer(**changes), layer(**changes, keys_from=0)
    if "position" not in changes:
        mixers += layer(WINDOW, **changes), layer(WINDOW, **changes, keys_from=2)
    model = built(decoder(*mixers), torch.float32)
    texts, lengths = TOKENS.tolist(), [3, 9, 6]
    state = model.new_state(3, 24)
    for row, length in enumerate(lengths):
        _, fresh = prefill(model, [texts[row][:length]], model.new_state(1, length + 2))
        state.insert(torch.tensor([row]), fresh)
    step = DecodeStep(model, state)
    for _ in range(9):
        logits = step(torch.tensor([[texts[row][length]] for row, length in enumerate(lengths)]))
        lengths = [length + 1 for length in lengths]
        for row, length in enumerate(lengths):
            assert distance(logits[row], whole(model, TOKENS[row : row + 1, :length])[0, -1]) < 1e-5
    assert step.replay is not None


def test_a_reader_that_is_not_recorded_reads_a_cache_that_is() -> None:
    """Sinks in bfloat16 are none of the kernel's: the reader attends by plain operations to the recorded cache."""
    kernels("native")
    for pattern in ("full", WINDOW):
        model = built(decoder(layer(pattern), layer(pattern, keys_from=0, sinks=True)), torch.bfloat16)
        step, state = DecodeStep(model, model.new_state(3, 20)), model.new_state(3, 20)
        exact = copy.deepcopy(model).double()(TOKENS).logits
        recorded, plain = [], []
        for position in range(12):
            with torch.no_grad():
                output = model(TOKENS[:, position : position + 1], state)
            state = output.state
            recorded.append(distance(step(TOKENS[:, position : position + 1]).double(), exact[:, position]))
            plain.append(distance(output.logits[:, 0].double(), exact[:, position]))
        assert mean(recorded) < 1.5 * mean(plain) < 0.05, (recorded, plain)  # each rounds to bfloat16 in its own order
        assert step.replay is not None


def test_an_engine_writes_the_greedy_text() -> None:
    """With a prefix that was read before, guesses that are taken back, and several requests at once."""
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (0,)
    prompt = [1, 2, 3, 4, 5] * 3 + [6]
    windows = decoder(layer(WINDOW), layer(WINDOW, keys_from=0))  # which take nothing back
    for model, lookup in ((windows, False), (decoder(layer(), layer(keys_from=0)), True)):
        module = built(model)
        engine = Engine(LanguageModel(model, module, tokenizer), slots=2, lookup=lookup)  # type: ignore[arg-type]
        for _ in range(2):
            requests = [engine.submit(prompt[:end], temperature=0.0, max_new_tokens=6) for end in (16, 16, 13)]
            for request in requests:
                ids = list(request.prompt)
                for event in request:
                    assert event.token == int(whole(module, torch.tensor([ids]))[0, -1].argmax())
                    ids.append(event.token)
                assert len(ids) > len(request.prompt)


@pytest.mark.parametrize("mixer", [layer(keys_from=0)["mixer"], "none"])
def test_a_layer_beside_a_source_may_keep_no_state(mixer: Any) -> None:
    """Beams share what is kept of a source, also in a layer that keeps nothing else."""
    cross = {"cross_attention": {"kind": "attention", "num_heads": 4}}
    layers = [layer() | cross, layer() | cross | {"mixer": mixer}]
    model = randomize(build(pair(decoder={"layers": layers, "final_norm": "rms"}), dtype=torch.float64))
    source, target = TOKENS[:2, :7] % 31, TOKENS[:2, :6]
    with torch.no_grad():
        expected = model(target, source=source).logits
        state = model.new_state(source, capacity=9, num_beams=2)  # type: ignore[operator]
        copies = target.repeat_interleave(2, 0)
        first = model(copies[:, :4], state)
        chosen = first.state.select(torch.tensor([2, 3]))
        last = model(copies[2:, 4:], chosen)
    assert distance(first.logits[::2], expected[:, :4]) < EXACT
    assert distance(last.logits[0], expected[1, 4:]) < EXACT


# training


def test_gradients_go_back_to_the_source() -> None:
    """They are the sum of those by its own attention and by the readers', as derivatives along a line say."""
    model = built(yoco())
    weight = model.blocks[2].mixer.k.weight
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2), dtype=weight.dtype)
    loss = model(TOKENS).logits.square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    with torch.no_grad():
        losses = []
        for step in (1e-5, -2e-5):
            weight += step * direction
            losses.append(float(model(TOKENS).logits.square().mean()))
    assert float((gradient * direction).sum()) == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6)
    own = built(yoco(None))
    own.load_state_dict(built(yoco()).state_dict(), strict=False)
    (alone,) = torch.autograd.grad(own(TOKENS).logits.square().mean(), own.blocks[2].mixer.k.weight)
    assert distance(gradient, alone) > WRONG


def test_recomputed_blocks_change_no_bit() -> None:
    gradients = []
    for recompute in ("none", "blocks", 4):
        model = built(yoco(), torch.float32).train().requires_grad_(True)
        recompute_blocks(model, recompute)  # type: ignore[arg-type]
        model(TOKENS).logits.square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for other in gradients[1:]:
        assert all(torch.equal(gradient, other[name]) for name, gradient in gradients[0].items())


def test_recomputed_blocks_hold_what_they_leave() -> None:
    models = gemma(), gemma(None, None)
    saved = [MemoryCost(model_cost(model), "float32").saved_activations(3, 20) for model in models]
    assert saved[0].block_inputs - saved[1].block_inputs == 2 * 2 * 3 * 20 * 8 * 4  # keys and values of two layers
    assert saved[0].blocks < saved[1].blocks


class Together(PositionShares):
    """Processes that are computed one after the other: what each has given is gathered in a second round."""

    def __init__(self, number: int, earlier: list[list[Tensor]], taken: list[list[Tensor]]) -> None:
        super().__init__(number, 2)
        self.number, self.earlier, self.taken = number, earlier, taken

    def gather(self, x: Tensor) -> Tensor:
        place = len(self.taken[self.number])
        self.taken[self.number].append(x)
        others = [self.earlier[number][place] if self.earlier[number] else x for number in range(2)]
        return self.in_order(torch.cat(others, dim=2))


def test_processes_share_the_positions_of_rows() -> None:
    """Each source gathers its keys and values once, for all that read them."""
    model, earlier = built(gemma()), [[], []]
    for _ in range(1 + model.spec.num_layers):  # each round one more layer has read what all processes have
        taken: list[list[Tensor]] = [[], []]
        shares = [Together(number, earlier, taken) for number in range(2)]
        with torch.no_grad():
            logits = [model(TOKENS, shares=one).logits for one in shares]
        earlier = taken
    assert len(taken[0]) == 2 * 5
    for one, own in zip(shares, logits, strict=True):
        assert distance(own, one.own(whole(model))) < EXACT


# what else sees it


def test_its_attention_is_looked_at() -> None:
    shown = inspection(built(gemma(), torch.float32).requires_grad_(False))
    assert shown.max_logit_difference == 0.0 and "recurrent" not in shown.views
    head: Any = shown.attention("blocks.9.mixer", 1)
    scores = shown.trace["blocks.9.mixer.q"][0, 1] @ shown.trace["blocks.4.mixer.k"][0, 0].T
    assert distance(head.scores, scores) < 1e-5
    assert distance(head.weights, scores.masked_fill(scores.triu(1) != 0, -math.inf).softmax(-1)) < 1e-5


def test_a_drawing_says_whose_keys_they_are() -> None:
    boxes = {box.id: box.label for box in archetype.draw(yoco()).scene.boxes}
    assert {"k of layer 2", "v of layer 2"} <= set(boxes.values())
    assert [label for name, label in boxes.items() if name.endswith("mixer.k")].count("k") == 2


REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    ([layer(keys_from=0)],
     "layers[0].mixer: reads layer 0, which is not before layer 0; name an earlier layer"),
    ([layer(), layer(keys_from=-2)], "layers[1].mixer: reads layer -1, which is not before layer 1"),
    ([layer(), layer(keys_from=5)], "layers[1].mixer: reads layer 5, which is not before layer 1"),
    ([layer(), layer(keys_from=0), layer(keys_from=1)],
     "layers[2].mixer.keys_from: the mixer of the referenced layer publishes nothing to read; name a layer of "),
    ([layer(), layer(WINDOW, keys_from=0)],
     "layers[1].mixer.keys_from: pattern differs from the referenced layer; make them equal"),
    ([layer(), layer(keys_from=0, num_heads=8, head_dim=4)],
     "layers[1].mixer.keys_from: num_heads differs from the referenced layer; make them equal"),
    ([layer(), layer(keys_from=0, num_kv_heads=4, position="none")],
     "layers[1].mixer.keys_from: num_kv_heads, position differs from the referenced layer; make them equal"),
    ([layer(), layer(keys_from=0, bias=True)],
     "layers[1].mixer.bias: with keys_from, keys and values already have the other layer's biases; "
     "use {q: true, o: true}"),
    ([block(mixer="lstm"), layer(keys_from=0)], "layers[1].mixer.keys_from: the mixer of the referenced layer "),
    ([layer(index=INDEX), layer(keys_from=0)],
     "layers[1].mixer.keys_from: the referenced layer selects keys with an index; name a layer without"),
    ([layer(), layer(keys_from=0, index=INDEX)],
     "layers[1].mixer.index: needs its own keys, but keys_from reads the keys of another layer; remove index or"),
    ([layer(), block(mixer={"kind": "together", "parts": [layer(keys_from=0)["mixer"]]})],
     "layers[1].mixer.parts[0]: reads another layer, which parallel mixers cannot do"),
    ([block(mixer={"kind": "together", "parts": [layer()["mixer"]]}), layer(keys_from=0)],
     "layers[1].mixer.keys_from: the mixer of the referenced layer publishes nothing to read"),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_cannot_be_read_is_refused(layers: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(SpecError) as refusal:
        decoder(*layers)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_cross_attention_and_pipelines_refuse_it() -> None:
    crossed = layer() | {"cross_attention": ATTENTION | {"keys_from": 0}}
    with pytest.raises(SpecError, match=r"cross_attention\.keys_from: cross-attention always reads the source's keys"):
        pair(decoder={"layers": [crossed], "final_norm": "rms"})
    assert gemma(None, None).divides_into_stages and not gemma().divides_into_stages
    with pytest.raises(SpecError, match=r"parallel\.pipeline: .* whose layers share no weights"):
        Parallel.parse({"pipeline": 2}).check(gemma(), Recipe.parse({"parallel": {"pipeline": 2}, "batch_size": 4}))


def test_further_tokens_read_no_layer() -> None:
    """The block that is as the last layer has keys of its own; one that is given must have them."""
    layers = [layer(), layer(keys_from=0)]
    model = decoder(*layers, further_tokens={"count": 2})
    assert model.further_stack is not None and not model.further_stack.sources  # type: ignore[attr-defined]
    assert built(model).further_tokens.blocks[0].mixer.k.weight.shape == (8, 16)  # type: ignore[union-attr]
    with pytest.raises(SpecError, match=r"further_tokens\.block\.mixer: reads another layer"):
        decoder(*layers, further_tokens={"count": 2, "block": layer(keys_from=-1)})


@pytest.mark.parametrize(
    ("format", "cause"), [("hf", "the llama format cannot express"), ("gguf", "llama.cpp does not support -1 in llama")]
)
def test_published_formats_have_no_word_for_it(format: Any, cause: str, tmp_path: Any) -> None:
    model = archetype.load_spec("llama-tiny")
    model = spec.assign(model, ["layers[-1].mixer.keys_from=-1"])
    lm = LanguageModel(model, build(model), None)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=rf"layers\[1\]\.mixer\.keys_from: {cause}"):
        archetype.export(lm, tmp_path / "out", family="llama", format=format)
    assert not (tmp_path / "out").exists()
