"""FLOPs: what is counted on paper is what the built model multiplies."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from archetype import cost, families, spec
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.nn.state import State
from archetype.roles.pattern import MaskContext, pattern_rule
from tests.helpers.examples import examples
from tests.helpers.passes import forward_step
from tests.helpers.specs import COMPRESSED, DECODERS, LATENT, OTHERS, block, decoder, mixed
from tests.helpers.strategies import CONTEXT, decoders

SIZES = {"batch": st.integers(1, 3), "length": st.integers(2, CONTEXT)}
BATCH, LENGTH = 2, 20


def tokens(vocab_size: int, batch: int = BATCH, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long) + torch.arange(length) % vocab_size


@contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """Kernels for CPU are single operations that the dispatcher does not see into; their plain forms are products."""
    with sdpa_kernel(SDPBackend.MATH), cells_in_the_open(), FlopCounterMode(display=False) as counter:
        yield counter


@contextmanager
def cells_in_the_open() -> Iterator[None]:
    """Setting oneDNN's flags anew warns of graphics cards that this build does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def flops_of(run: Callable[[], object]) -> int:
    with torch.no_grad(), counted() as counter:
        run()
    return counter.get_total_flops()


def padding(model: spec.ModelSpec, rows: int, queries: int, keys: int) -> int:
    """Products with the zeros that make keys and values equally wide, which are not counted.

    Differential attention has the values of two heads. Where weights are computed in the open, as with sinks, or
    latents are looked at themselves, there are none.
    """
    added = 0
    for stack in model.stacks:
        contents = ((layer, part) for layer, block in enumerate(stack.layers) for part in block.mixer.each())
        for layer, mixer in ((layer, branch) for layer, part in contents for branch in branches(part)):
            pairs, widths = queries * keys, (0, 0)
            if isinstance(mixer, spec.LatentAttention) and not (mixer.sinks or mixer.absorbs(queries, keys)):
                widths = mixer.head_dim, mixer.v_head_dim
            is_scaled = isinstance(mixer, spec.Attention) and mixer.score == "dot" and mixer.softcap is None
            if is_scaled and not mixer.sinks and mixer.softmax == "standard":
                value_width = mixer.value_width(stack.d_model) * (1 if mixer.differential is None else 2)
                pairs = masked_pairs(mixer.pattern, keys, layer)
                widths = mixer.sizes(stack.d_model).head_dim, value_width
            added += 2 * rows * pairs * mixer.num_heads * abs(widths[0] - widths[1]) if any(widths) else 0
    return added


def branches(mixer: spec.Mixer) -> list[spec.Mixer]:
    """Attention of a kernel within a mixer, or the mixer itself."""
    if not isinstance(mixer, spec.NativeSparseAttention):
        return [mixer]
    return [mixer.attention(pattern) for pattern in (spec.Full(), spec.Window(size=mixer.window))]


def masked_pairs(pattern: spec.Pattern, length: int, layer: int) -> int:
    """Pairs that torch's kernel computes under one mask: none if several pieces are added, or tiles have one query."""
    rule, context = pattern_rule(pattern), MaskContext(True, length, layer)
    if rule.num_computed_pairs(context) >= length**2:
        return length**2
    shapes = [shape for shape in rule.shapes(context) if all(shape)]
    return prod(shapes[0]) if len(shapes) == 1 and shapes[0][1] > 1 else 0


def of_one_feature(model: spec.Decoder) -> bool:
    """Whether latents or streams have a product over a single one, which torch multiplies without counting it."""
    mixers = (mixer for block in model.layers for mixer in block.mixer.each())
    latents = [mixer for mixer in mixers if isinstance(mixer, spec.LatentAttention)]
    streams = getattr(model.residual, "num_streams", 0)
    return streams == 1 or any(1 in (part.kv_lora_rank, part.qk_nope_head_dim) for part in latents)


def has_idle_experts(model: spec.Decoder) -> bool:
    """Whether a router may choose experts that compute nothing, which costs count as often as the others."""
    parts = (part for block in model.layers for part in getattr(block.feedforward, "parts", (block.feedforward,)))
    return any(getattr(part, "idle", 0) for part in parts)


def written(model: torch.nn.Module, texts: torch.Tensor, state: State | None = None) -> State:
    with torch.no_grad():
        _, state = forward_step(model, texts, state or model.new_state(len(texts), LENGTH))
    return state


@pytest.mark.parametrize("name", sorted(DECODERS.keys() - {"idle experts"}))
def test_a_decoder_of_every_part_multiplies_what_is_counted(name: str) -> None:
    drawn = DECODERS[name]
    model, texts, expected = build(drawn).eval(), tokens(drawn.vocab_size), cost.cost_report(drawn, BATCH, LENGTH).flops
    added = padding(drawn, BATCH, LENGTH, LENGTH)
    assert flops_of(lambda: model(texts)) == expected["forward"] + added
    assert flops_of(lambda: model(texts, last_only=True)) == expected["prefill"] + added
    state = written(model, texts[:, :-1])
    assert flops_of(lambda: model(texts[:, -1:], state)) == expected["decode"]


@pytest.mark.parametrize("name", [name for name, model in OTHERS.items() if isinstance(model, spec.NGram)])
def test_an_ngram_model_multiplies_what_is_counted(name: str) -> None:
    drawn = OTHERS[name]
    model, texts, expected = build(drawn).eval(), tokens(drawn.vocab_size), cost.cost_report(drawn, BATCH, LENGTH).flops
    assert flops_of(lambda: model(texts)) == expected["forward"]
    assert flops_of(lambda: model(texts, last_only=True)) == expected["prefill"]
    state = written(model, texts[:, :-1])
    assert flops_of(lambda: model(texts[:, -1:], state)) == expected["decode"]


def test_megabyte_multiplies_what_is_counted_and_decodes_so_on_average() -> None:
    drawn = OTHERS["megabyte"]
    assert isinstance(drawn, spec.MegaByte)
    model, texts, expected = build(drawn).eval(), tokens(drawn.vocab_size), cost.cost_report(drawn, BATCH, LENGTH).flops
    assert flops_of(lambda: model(texts)) == expected["forward"]
    assert flops_of(lambda: model(texts, last_only=True)) == expected["prefill"]
    state, patch = written(model, texts[:, : -drawn.patch_size]), 0
    for place in range(LENGTH - drawn.patch_size, LENGTH):
        byte = texts[:, place : place + 1]
        patch += flops_of(lambda byte=byte, state=state: model(byte, state, last_only=True))
        state = written(model, byte, state)
    decode = cost.cost_report(drawn, BATCH, LENGTH).formulas["decode"]
    assert (decode * drawn.patch_size).value == patch


@pytest.mark.parametrize("name", [name for name, model in OTHERS.items() if isinstance(model, spec.Encoder)])
def test_an_encoder_multiplies_what_is_counted(name: str) -> None:
    drawn = OTHERS[name]
    model, expected = build(drawn).eval(), cost.cost_report(drawn, BATCH, LENGTH).flops
    assert flops_of(lambda: model(tokens(drawn.vocab_size))) == expected["forward"] > 0
    assert expected["prefill"] == expected["decode"] == 0


@pytest.mark.parametrize("name", [name for name, model in OTHERS.items() if isinstance(model, spec.VisionEncoder)])
def test_a_picture_has_one_length(name: str) -> None:
    drawn = OTHERS[name]
    assert isinstance(drawn, spec.VisionEncoder)
    model, pictures = build(drawn).eval(), torch.zeros(BATCH, drawn.num_channels, drawn.image_size, drawn.image_size)
    report = cost.cost_report(drawn, BATCH)
    assert report.length == drawn.context_length
    with pytest.raises(SpecError, match="length: an image has"):
        cost.cost_report(drawn, BATCH, 1000)
    assert flops_of(lambda: model(pictures)) == report.flops["forward"] > 0


@pytest.mark.parametrize("name", [name for name, model in OTHERS.items() if isinstance(model, spec.EncoderDecoder)])
def test_a_pair_reads_its_source_once(name: str) -> None:
    drawn = OTHERS[name]
    assert isinstance(drawn, spec.EncoderDecoder)
    model, target = build(drawn).eval(), tokens(drawn.vocab_size)
    for length in (None, 7):
        expected = cost.cost_report(drawn, BATCH, LENGTH, source_length=length).flops
        source = tokens(drawn.source_vocab_size or drawn.vocab_size, length=length or LENGTH)

        def begun(source: torch.Tensor = source) -> State:
            return model.new_state(source, capacity=LENGTH)

        assert flops_of(lambda: model(target, begun())) == expected["forward"]
        assert flops_of(lambda: model(target, begun(), last_only=True)) == expected["prefill"]
        state = written(model, target[:, :-1], begun())
        assert flops_of(lambda state=state: model(target[:, -1:], state)) == expected["decode"]


@given(drawn=decoders(), **SIZES)
@examples(10)
def test_forward_multiplies_what_is_counted(drawn: spec.Decoder, batch: int, length: int) -> None:
    assume(not of_one_feature(drawn) and not has_idle_experts(drawn))
    model = build(drawn).eval()
    run = flops_of(lambda: model(tokens(drawn.vocab_size, batch, length)))
    assert run == cost.cost_report(drawn, batch, length).flops["forward"] + padding(drawn, batch, length, length)


@given(drawn=decoders(), **SIZES)
@examples(10)
def test_a_decoded_token_multiplies_what_is_counted(drawn: spec.Decoder, batch: int, length: int) -> None:
    """One token on a state with room for `length`: the buffer is read in full, filled or not."""
    assume(not of_one_feature(drawn) and not has_idle_experts(drawn))
    model = build(drawn).eval()
    text = tokens(drawn.vocab_size, batch, length)
    with torch.no_grad():
        _, state = forward_step(model, text[:, :-1], model.new_state(batch, length))
    run = flops_of(lambda: model(text[:, -1:], state))
    assert run == cost.cost_report(drawn, batch, length).flops["decode"]


def test_an_index_that_a_decoded_token_alone_needs_is_counted() -> None:
    """The open window has a slot in the cache: with it there are more keys than the index chooses."""
    pooling = {"rate": 3, "index": {"top_k": 5, "num_heads": 2, "head_dim": 4}}
    drawn = decoder(block(mixer=COMPRESSED | {"pooling": pooling}))
    model, text = build(drawn).eval(), tokens(drawn.vocab_size, 1, 15)
    state = written(model, text[:, :-1], model.new_state(1, 15))
    report = cost.cost_report(drawn, 1, 15)
    assert flops_of(lambda: model(text)) == report.flops["forward"]
    assert flops_of(lambda: model(text[:, -1:], state)) == report.flops["decode"]
    assert any("index" in row.module and row.decode and not row.forward for row in report.rows)


@pytest.mark.parametrize("name", ["attention", "rotary", "softcap", "mlp", "experts", "sandwich", "tied"])
def test_backward_multiplies_twice_what_forward_does(name: str) -> None:
    """Exactly: every product has two factors and both need a gradient, for even the first layer's input is learned."""
    drawn = DECODERS[name]
    model, expected = build(drawn).train(), cost.cost_report(drawn, BATCH, LENGTH).flops
    with counted() as counter:
        loss = model(tokens(drawn.vocab_size)).logits.sum()
        assert counter.get_total_flops() == expected["forward"]
        loss.backward()
    assert counter.get_total_flops() == expected["train"] == 3 * expected["forward"]


def test_computing_blocks_again_is_their_forward_once_more() -> None:
    report = cost.cost_report(DECODERS["attention"], BATCH, LENGTH)
    blocks = sum(row.forward for row in report.rows if row.module.startswith("blocks."))
    assert report.flops["train_recomputed"] - report.flops["train"] == blocks < report.flops["forward"]


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_every_row_multiplies_what_is_counted(name: str) -> None:
    preset = families.preset(name)
    model, batch, length = build(preset).eval(), 2, 24
    with torch.no_grad(), counted() as counter:
        model(tokens(preset.vocab_size, batch, length))
    flop_counts = counter.get_flop_counts().items()
    by_module = {module.removeprefix("Decoder."): sum(count.values()) for module, count in flop_counts}
    rows = {row.module: row for row in cost.cost_report(preset, batch, length).rows}
    products = sum(rows.pop(f"blocks.0-1.mixer.{name}").forward for name in ("scores", "mixture"))
    projections = sum(rows[f"blocks.0-1.mixer.{name}"].forward for name in "qkvo")
    assert 2 * by_module["blocks.0.mixer"] == products + projections
    for module, row in rows.items():
        assert row.forward == by_module.get(module.replace("0-1", "0"), 0) * row.layers, module


PATTERNS = {name: DECODERS[name] for name in ("attention", "window", "strided", "fixed", "global window")}


@pytest.mark.parametrize("name", PATTERNS)
def test_allowed_pairs_are_counted(name: str) -> None:
    drawn = PATTERNS[name]
    pattern = drawn.layers[0].mixer.pattern
    allowed = sum(
        bool(pattern_rule(pattern).allows(i, j, MaskContext(True, LENGTH)))
        for i in range(LENGTH)
        for j in range(LENGTH)
    )
    newest = sum(bool(pattern_rule(pattern).allows(LENGTH - 1, j, MaskContext(True, LENGTH))) for j in range(LENGTH))
    report = cost.cost_report(drawn, BATCH, LENGTH, attention="allowed")
    scores = next(row for row in report.rows if row.module == "blocks.0-1.mixer.scores")
    assert scores.forward == 2 * 2 * BATCH * 16 * allowed
    assert scores.decode == 2 * 2 * BATCH * 16 * newest
    assert "allow" in report.to_json()["conventions"]["attention"]


@pytest.mark.parametrize("form", ["plain", "absorbed"])
def test_latent_attention_is_counted_in_the_form_that_takes_fewer(form: str) -> None:
    part = spec.LatentAttention.parse(LATENT | {"v_head_dim": 6, "kv_lora_rank": 8 if form == "plain" else 4})
    drawn = mixed(**part.dump())
    b, n, h, c, rope = BATCH, LENGTH, 4, part.kv_lora_rank, 4
    rows = {row.module: row for row in cost.cost_report(drawn, b, n).rows}
    kv_up, scores = rows["blocks.0-1.mixer.kv_up"], rows["blocks.0-1.mixer.scores"]
    assert scores.forward == 2 * 2 * b * n * n * h * (6 + rope if form == "plain" else c + rope)
    assert kv_up.decode == 2 * 2 * b * h * c * 12  # one token looks at the latents themselves


def test_a_longer_window_makes_decoding_no_dearer() -> None:
    window = DECODERS["window"]
    assert len({cost.cost_report(window, length=length).flops["decode"] for length in (5, 50, 5000)}) == 1
    assert cost.cost_report(window, length=4).flops["decode"] < cost.cost_report(window, length=5).flops["decode"]


def test_the_standard_formula_is_the_count_of_gpt2() -> None:
    preset = families.preset("gpt2")
    b, s, d, layers, vocab = 3, 1024, preset.d_model, preset.num_layers, preset.vocab_size
    formula = layers * (24 * b * s * d**2 + 4 * b * s**2 * d) + 2 * b * s * d * vocab
    report = cost.cost_report(preset, batch=b, length=s)
    assert report.flops["forward"] == formula
    assert report.flops["train"] == 3 * formula


def test_decoding_reads_the_whole_length_and_computes_one_token() -> None:
    preset = families.preset("gpt2")
    s, d, layers, vocab = 1024, preset.d_model, preset.num_layers, preset.vocab_size
    assert cost.cost_report(preset, length=s).flops["decode"] == layers * (24 * d**2 + 4 * s * d) + 2 * d * vocab


def test_fewer_key_heads_cost_fewer_products_only_in_their_projections() -> None:
    multi = families.preset("llama-tiny")
    one = spec.assign(multi, ["layers[*].mixer.num_kv_heads=1"])
    before, after = ({row.module: row.forward for row in cost.cost_report(each, 1, 8).rows} for each in (multi, one))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"blocks.0-1.mixer.{projection}" for projection in "kv"}
    assert all(before[name] == 2 * after[name] for name in changed)
