"""Keys and values kept in fewer bits: a text is that of the same numbers rounded, whichever way it is computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from archetype import Engine, LanguageModel, cost_report, load, spec
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.state import state_parts
from archetype.generate import Beam, DecodeStep, beam_search, use_state_dtype
from archetype.generate.state_dtype import STATE_DTYPES, state_dtype
from archetype.models.build import build
from archetype.models.causal import CausalModel
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.native.kernels import plain_operations
from archetype.nn.cache import CrossKVCache, KVCache, RingKVCache, write_slots
from archetype.nn.state import State
from archetype.parts.attention.cross import CrossAttention
from archetype.spec import assign
from tests.helpers.cases import case
from tests.helpers.examples import every, first_of_each
from tests.helpers.kernels import kernels
from tests.helpers.specs import ALL, ATTENTION, DECODERS, INDEX, attending, block, decoder, pair
from tests.helpers.weights import distance, randomize

NARROW = ("bfloat16", "float16", "int8")
STEPS = {
    "bfloat16": 2e-3,
    "float16": 3e-4,
    "int8": 5e-3,
}  # what a few keys that are rounded to the other neighbour change
WINDOW = ATTENTION | {"pattern": {"kind": "window", "size": 5}, "position": {"kind": "rotary"}}
KINDS: dict[str, spec.ModelSpec] = {
    "full": attending(num_kv_heads=4),
    "grouped": attending(position={"kind": "rotary"}, softcap=5.0, sinks=True),
    "alibi": attending(position={"kind": "alibi"}),
    "window": decoder(block(mixer=WINDOW), block(mixer=ATTENTION)),
    "keys of another layer": DECODERS["keys of another layer"],
    "latent": DECODERS["latent"],
    "index": attending(index=INDEX),
    "latent, index": DECODERS["latent, index"],
    "chunked": DECODERS["chunked"],
    "cross": pair(),
    "megabyte": ALL["megabyte"],
    "hybrid": DECODERS["hybrid"],
    "delta net": decoder(block(mixer={"kind": "gated_delta_net", "num_heads": 4, "head_dim": 5}), block()),
}
FURTHER = assign(KINDS["grouped"], ["further_tokens={count: 2}"])
INDEXED = ("index", "latent, index")  # whose index keeps no int8
CASES = first_of_each(
    lambda kind, dtype: (kind, dtype),
    [pytest.param(kind, dtype) for kind in KINDS for dtype in NARROW if dtype != "int8" or kind not in INDEXED],
)
TOKENS = torch.randint(0, 31, (3, 20), generator=torch.Generator().manual_seed(3))


def drawn(kind: str, dtype: torch.dtype = torch.float32) -> CausalModel | EncoderDecoder:
    model = randomize(build(KINDS[kind], dtype=dtype), seed=5)
    assert isinstance(model, CausalModel | EncoderDecoder)
    return model.eval()


def new_state(model: CausalModel | EncoderDecoder, rows: int = 3) -> State:
    if isinstance(model, EncoderDecoder):
        return model.new_state(TOKENS[:rows], torch.tensor([20, 7, 13])[:rows], capacity=20)
    return model.new_state(rows, 20)


def as_stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.int8:
        return x.to(dtype).to(x.dtype)
    scales = x.abs().amax(-1, keepdim=True) / 127
    return (x / scales).round() * scales


@contextmanager
def rounded(dtype: torch.dtype) -> Iterator[None]:
    """Keys and values of float32 that are rounded where they are written: the formula, without a narrow buffer."""
    with pytest.MonkeyPatch.context() as patch:
        for cache in (KVCache, RingKVCache):

            def append(self: Any, k: Tensor, v: Tensor, context: Any, original: Any = cache.append) -> Any:
                return original(self, as_stored(k, dtype), as_stored(v, dtype), context)

            patch.setattr(cache, "append", append)
        project, write = CrossAttention.project, write_slots

        def projected(self: Any, *inputs: Any) -> CrossKVCache:
            source = project(self, *inputs)
            return CrossKVCache(as_stored(source.keys, dtype), as_stored(source.values, dtype), source.num_tokens)

        patch.setattr(CrossAttention, "project", projected)
        index = "archetype.parts.lightning_index.module.write_slots"
        patch.setattr(index, lambda to, new, context: write(to, as_stored(new, dtype), context))
        yield


@torch.no_grad()
def logits_of(model: CausalModel | EncoderDecoder, cut: int) -> Tensor:
    """Logits of all tokens: of the first `cut` in one pass with a state, then token by token."""
    output = model(TOKENS[:, :cut], new_state(model))
    logits = [output.logits]
    for position in range(cut, 20):
        output = model(TOKENS[:, position : position + 1], output.state)
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize(("kind", "dtype"), every(4, CASES))
def test_torch_attends_to_the_rounded_numbers(kind: str, dtype: str) -> None:
    """Prompts in one pass, and tokens one by one, are those of float32 numbers rounded as they are written."""
    model, narrow = drawn(kind), STATE_DTYPES[dtype]
    with plain_operations():
        exact = logits_of(model, 12)
        with rounded(narrow):
            expected = logits_of(model, 12)
        use_state_dtype(model, dtype)
        assert state_dtype(model) == narrow
        logits = logits_of(model, 12)
        assert distance(logits, expected) <= 1e-6
        assert 1e-6 < distance(logits, exact) < (1 if "index" in kind else 0.1)  # an index may choose other keys
        # however the prompt is cut: sums that differ in the last bit may be rounded to the other neighbour
        assert distance(logits[:, 12:], logits_of(model, 1)[:, 12:]) < STEPS[dtype]


@pytest.mark.parametrize(("kind", "dtype"), every(2, CASES[1:] + CASES[:1]))
def test_a_recorded_step_attends_to_the_rounded_numbers(kind: str, dtype: str) -> None:
    """Its keys may be rounded from sums that differ in the last bit, so that a few differ by a step of the type."""
    kernels("native")  # skipped without
    model = drawn(kind)
    use_state_dtype(model, dtype)
    plain, native = new_state(model), new_state(model)
    step = DecodeStep(model, native)
    for position in range(20):
        newest = TOKENS[:, position : position + 1]
        logits = step(newest)
        with plain_operations(), torch.no_grad():
            output = model(newest, plain)
        plain = output.state
        assert (step.replay is None) == (kind == "megabyte")  # which reads numbers on the host
        assert distance(logits, output.logits[:, 0]) < STEPS[dtype]
    for (_, name, mine), (_, _, theirs) in zip(
        *([one for layer in state.layers for one in layer.tensors()] for state in (native, plain)), strict=True
    ):
        assert mine.dtype == theirs.dtype
        if mine.dtype == STATE_DTYPES[dtype]:
            assert float((mine == theirs).float().mean()) > 0.97, name


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_takes_the_bytes_that_the_cost_says(kind: str) -> None:
    for weights, dtype in product(("float32", "bfloat16"), STATE_DTYPES):
        if dtype == "int8" and kind in INDEXED:
            continue
        with case(weights, dtype):
            model = drawn(kind, STATE_DTYPES[weights])
            use_state_dtype(model, dtype)
            source = 20 if KINDS[kind].reads_source else None
            report = cost_report(KINDS[kind], 3, 20, weights, source_length=source, state_dtype=dtype)
            state = new_state(model)
            assert state.nbytes == report.state["bytes"]
            sizes = model.dtype.itemsize, state_dtype(model).itemsize  # as the server predicts it
            assert state.nbytes == 3 * sum(part.nbytes(*sizes) for part in state_parts(KINDS[kind], 20, source))
            if isinstance(model, EncoderDecoder):
                assert model.empty_state(3, 20, 20).nbytes == state.nbytes


def test_recurrent_states_keep_the_type_of_the_weights() -> None:
    model = drawn("hybrid")
    use_state_dtype(model, "bfloat16")
    state = new_state(model)
    kinds = [{tensor.dtype for _, _, tensor in layer.tensors()} for layer in state.layers]
    assert kinds == [{torch.float32}, {torch.bfloat16}] * 2


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", every(3, ["grouped", "window", "latent", "cross", "hybrid"]))
def test_rows_of_an_engine_are_single_rows(kind: str, deterministic: bool) -> None:
    kernels("native")  # skipped without
    for weights, dtype in (*(("float32", dtype) for dtype in NARROW), ("bfloat16", "float16"), ("bfloat16", "int8")):
        if deterministic and kind == "grouped" and (weights, dtype) == ("bfloat16", "int8"):
            continue  # no kernel reads sinks of bfloat16, and torch widens keys
        with case(weights, dtype):
            model = drawn(kind, STATE_DTYPES[weights])
            lm: Any = LanguageModel(KINDS[kind], model, special={"decoder_start_token_id": 0})  # type: ignore[arg-type]
            lm.use_state_dtype(dtype)
            if deterministic:
                lm.make_deterministic()
            prompts = [TOKENS[row, :length].tolist() for row, length in enumerate((20, 3, 17))]

            def texts(engine: Engine, which: list[list[int]]) -> list[list[int]]:
                requests = [
                    engine.submit(prompt, max_new_tokens=12, temperature=0.0, ignore_eos=True) for prompt in which
                ]
                [*engine.events()]
                return [request.tokens for request in requests]

            alone = [texts(Engine(lm, slots=1, prefix_bytes=0), [prompt])[0] for prompt in prompts]
            engine = Engine(lm, slots=4)
            assert engine.state_dtype == STATE_DTYPES[dtype]
            if deterministic or weights == "float32":  # bits of bfloat16 weights depend on the number of rows
                assert texts(engine, prompts) == alone
                assert texts(engine, prompts) == alone  # from the prefix cache


def test_drafts_change_no_text() -> None:
    model = drawn("grouped")
    lm: Any = LanguageModel(KINDS["grouped"], model)  # type: ignore[arg-type]
    lm.use_state_dtype("float16")
    prompt = TOKENS[0, :9].tolist() * 2

    def text(**options: Any) -> list[int]:
        request = Engine(lm, slots=1, **options).submit(prompt, max_new_tokens=15, temperature=0.0)
        return [event.token for event in request if event.token is not None]

    assert text() == text(lookup=True) == text(draft=lm)


@pytest.mark.parametrize("dtype", NARROW)
def test_beams_share_the_rounded_keys_of_a_source(dtype: str) -> None:
    """Recorded steps of a beam search, which copy rows of keys and their scales, find what torch's operations find."""
    model = drawn("cross")
    assert isinstance(model, EncoderDecoder)
    use_state_dtype(model, dtype)
    sources, settings = [row.tolist() for row in TOKENS], Beam(num_beams=3, max_extra_tokens=4)
    targets = beam_search(model, sources, 0, 1, settings)
    with plain_operations(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("archetype.generate.step.library", lambda: None)
        assert beam_search(model, sources, 0, 1, settings) == targets
    assert [beam_search(model, [source], 0, 1, settings)[0] for source in sources] == targets


def test_a_model_drafts_for_itself() -> None:
    model = randomize(build(FURTHER), seed=5).eval()
    lm: Any = LanguageModel(FURTHER, model)
    prompt = TOKENS[0, :9].tolist()
    for dtype in NARROW:
        engines = Engine(lm.use_state_dtype(dtype), slots=1), Engine(lm, slots=1, draft="self")
        texts = [engine.submit(prompt, max_new_tokens=10, temperature=0.0) for engine in engines]
        [*engines[0].events(), *engines[1].events()]
        assert texts[0].tokens == texts[1].tokens and engines[1].stats().guessed_tokens, dtype


def test_a_key_beyond_the_range_of_float16_is_reported() -> None:
    model = drawn("full")
    assert isinstance(model, CausalModel)
    with torch.no_grad():
        model.get_submodule("blocks.1.mixer.v").weight.mul_(1e6)  # type: ignore[operator]
    lm: Any = LanguageModel(KINDS["full"], model)  # type: ignore[arg-type]
    prompt = TOKENS[0, :9].tolist()
    Engine(lm.use_state_dtype("bfloat16")).submit(prompt, max_new_tokens=5).result()
    words = "state_dtype: a key or value exceeds 65,504, the range of float16; use bfloat16"
    with pytest.raises(CheckpointError, match=words):
        Engine(lm.use_state_dtype("float16")).submit(prompt, max_new_tokens=5).result()


def test_what_cannot_be_kept_is_refused_in_one_line() -> None:
    model = drawn("grouped")
    for dtype in ("fp8", "int4", "float64", torch.uint8):
        with pytest.raises(SpecError) as caught:
            use_state_dtype(model, dtype)
        name = str(dtype).removeprefix("torch.")
        words = "use one of float32, bfloat16, float16, int8"
        assert str(caught.value) == f"state_dtype: keys and values cannot be kept in {name!r}; {words}"
    mamba = build(DECODERS["mamba"])
    assert isinstance(mamba, CausalModel)
    with pytest.raises(SpecError, match="state_dtype: no layer of this model keeps keys and values"):
        use_state_dtype(mamba, "float16")
    with pytest.raises(SpecError, match="the keys of the lightning index cannot be kept in int8"):
        use_state_dtype(drawn("index"), "int8")
    with pytest.raises(SpecError, match="cannot be kept in 'fp8'"):  # before the folder is looked for
        load("no-such-folder", state_dtype="fp8")
