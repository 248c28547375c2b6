"""Masked and block diffusion: identities of the bound, of training in one pass, and of generation by unmasking."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from archetype.api.text_encoder import TextEncoder
from archetype.data.masks import draw_masks
from archetype.errors import ArchetypeError
from archetype.evaluation import likelihood_bound, score
from archetype.families.eurobert import eurobert
from archetype.generate import Sampling, Unmasking, unmask
from archetype.models.build import build
from archetype.models.encoder.module import Encoder
from archetype.parts.head.spec import LanguageModelHead, MaskedLogitsHead
from archetype.parts.pattern.spec import BlockCausal, Full
from archetype.roles.pattern import MaskContext, PatternRule, pattern_rule
from archetype.spec import Decoder as DecoderSpec
from archetype.tokenizers.bytes import ByteTokenizer

TEXT = "left to right, or in blocks"
VOCABULARY, LENGTH = 257, len(TEXT)
MASK = 256  # the id after the tokenizer's


@torch.no_grad()
def encoder(block: int | None = None, shifted: bool = False, layers: int = 2) -> Encoder:
    """A small random encoder, whose logits differ clearly between tokens."""
    design = dict(num_layers=layers, d_model=16, num_heads=2, d_ff=24, vocab_size=VOCABULARY, context_length=64)
    pattern = Full() if block is None else BlockCausal(size=block)
    spec = eurobert(**design, patterns=(pattern,), head=MaskedLogitsHead(shifted=shifted))
    model = build(spec, seed=0).eval()
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    assert isinstance(model, Encoder)
    return model


def as_decoder(model: Encoder) -> Any:
    """The decoder with the same weights."""
    fields = {name: getattr(model.spec, name) for name in DecoderSpec.model_fields if hasattr(model.spec, name)}
    layers = tuple(layer.replace(mixer=layer.mixer.replace(pattern=Full())) for layer in model.spec.layers)
    spec = DecoderSpec(**fields | {"kind": "decoder", "layers": layers, "head": LanguageModelHead()})
    decoder = build(spec).eval()
    decoder.load_state_dict(model.state_dict())
    return decoder


def bound(model: Encoder, draws: int = 32, text: str = TEXT, **options: Any) -> Any:
    return likelihood_bound(model, ByteTokenizer(), text, draws=draws, **options)


@pytest.mark.parametrize("block", [None, 4])
def test_bound_of_a_uniform_model_is_the_logarithm_of_the_vocabulary(block: int | None) -> None:
    model = encoder(block)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    result = bound(model, draws=3, length=10)
    assert result.loss == pytest.approx(math.log(VOCABULARY), abs=1e-6) and result.error < 1e-6
    assert bound(encoder(block), draws=3).loss != pytest.approx(math.log(VOCABULARY), abs=0.01)


def test_bound_with_blocks_of_one_token_is_the_likelihood_of_the_decoder_with_the_same_weights() -> None:
    model = encoder(block=1, shifted=True)
    decoder = as_decoder(model)
    exact = score(decoder, ByteTokenizer(), TEXT).losses
    torch.testing.assert_close(bound(model).losses[1:], exact, atol=1e-5, rtol=0)
    # control: larger blocks, or vectors that are not shifted, give another number
    for other in (encoder(block=2, shifted=True), encoder(block=1)):
        assert (bound(other, draws=8).losses[1:] - exact).abs().max() > 0.05


def test_bound_with_blocks_of_one_token_equals_generation_step_by_step() -> None:
    model, ids = encoder(block=1), list(TEXT.encode())
    nats: list[float] = []
    for index, id in enumerate(ids):
        logits = model(torch.tensor([[*ids[:index], MASK]])).logits[0, -1]
        nats.append(-logits.log_softmax(-1)[id].item())
    torch.testing.assert_close(bound(model).losses, torch.tensor(nats, dtype=torch.float64), atol=1e-5, rtol=0)


def test_bound_of_two_tokens_is_the_mean_over_both_orders() -> None:
    model, ids = encoder(), [5, 9]
    result = bound(model, draws=4096, text=bytes(ids).decode())

    def nats(shown: dict[int, int], position: int) -> float:
        tokens = torch.tensor([[shown.get(index, MASK) for index in range(2)]])
        return -model(tokens).logits[0, position].log_softmax(-1)[ids[position]].item()

    orders = [nats({}, first) + nats({first: ids[first]}, 1 - first) for first in range(2)]
    # draws are spread evenly over the two numbers of masks, so that the error is smaller than the estimate of it
    assert 2 * result.loss == pytest.approx(sum(orders) / 2, abs=4 * result.error)
    # never below the likelihood of the text under generation in a random order
    likelihood = -math.log(sum(math.exp(-order) for order in orders) / 2)
    assert sum(orders) / 2 >= likelihood
    assert (
        min(abs(order - 2 * result.loss) for order in orders) > 8 * result.error
    )  # control: one order is not the mean


def test_masks_have_every_count_equally_often_and_weights_that_sum_to_the_length() -> None:
    shape, block = (12, 10), 4
    draws = [draw_masks(shape, block, np.random.default_rng(0), draw, 4) for draw in range(4)]
    is_masked, weights = (np.concatenate([getattr(each, name) for each in draws]) for name in ("is_masked", "weights"))
    for start, size in ((0, 4), (4, 4), (8, 2)):
        counts = is_masked[:, start : start + size].sum(1)
        assert np.bincount(counts, minlength=size + 1).tolist() == [0, *[48 // size] * size]
        np.testing.assert_allclose((is_masked * weights)[:, start : start + size].sum(1), size, rtol=1e-6)


def test_one_pass_with_a_clean_copy_equals_each_block_after_the_unmasked_blocks_before_it() -> None:
    block, length = 4, 11
    tokens = torch.randint(256, (2, length), generator=torch.Generator().manual_seed(1))
    masked = tokens.masked_fill(torch.rand(2, length, generator=torch.Generator().manual_seed(2)) < 0.6, MASK)
    for shifted in (False, True):
        model = encoder(block, shifted)
        together = model(masked, clean=tokens).logits
        for start in range(0, length, block):
            part = slice(start, start + block)
            alone = model(torch.cat((tokens[:, :start], masked[:, part]), dim=1)).logits[:, part]
            torch.testing.assert_close(together[:, part], alone, atol=1e-5, rtol=0)
        # control: later blocks do not read the masked tokens of earlier ones
        assert (together - model(masked).logits).abs().max() > 0.01


def test_the_cost_of_a_block_causal_pattern_counts_its_pairs() -> None:
    for length, size in ((11, 4), (12, 4), (3, 8), (5, 1)):
        rule, where = pattern_rule(BlockCausal(size=size)), MaskContext(False, length)
        assert rule.pairs(where) == PatternRule.pairs(rule, where)


GREEDY = {"temperature": 0.0, "max_new_tokens": 9}


@pytest.mark.parametrize("order", ["confidence", "left_to_right", "random"])
@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_unmasking_with_kept_keys_equals_unmasking_of_whole_sequences(order: Any, tokens_per_step: int) -> None:
    model, prompt = encoder(block=4), list(b"block")
    settings = Unmasking(order=order, tokens_per_step=tokens_per_step)
    fast = unmask(model, ByteTokenizer(), prompt, Sampling(**GREEDY, seed=3), settings)
    tokens, generator = [*prompt, *[MASK] * 9], torch.Generator().manual_seed(3)
    for end in (8, 12, 14):
        while MASK in tokens[:end]:
            places = [index for index in range(end) if tokens[index] == MASK]
            logits = model(torch.tensor([tokens[:end]])).logits[0, places, :MASK]
            best = logits.softmax(-1).max(-1)
            by_order = {
                "confidence": lambda best=best: best.values.argsort(descending=True, stable=True).tolist(),
                "left_to_right": lambda places=places: list(range(len(places))),
                "random": lambda places=places: torch.randperm(len(places), generator=generator).tolist(),
            }
            for index in by_order[order]()[:tokens_per_step]:
                tokens[places[index]] = int(best.indices[index])
    assert fast == tokens[len(prompt) :]


def test_unmasking_a_shifted_model_with_blocks_of_one_token_is_greedy_decoding() -> None:
    model, prompt = encoder(block=1, shifted=True), list(b"right")
    tokens, decoder = prompt.copy(), as_decoder(model)
    for _ in range(9):
        tokens.append(int(decoder(torch.tensor([tokens])).logits[0, -1, :256].argmax()))
    assert unmask(model, ByteTokenizer(), prompt, Sampling(**GREEDY), Unmasking()) == tokens[5:]


def test_blocks_of_a_bidirectional_model_are_unmasked_one_after_the_other() -> None:
    model, prompt = encoder(), list(b"block")
    whole = unmask(model, ByteTokenizer(), prompt, Sampling(**GREEDY), Unmasking())
    one_by_one = unmask(model, ByteTokenizer(), prompt, Sampling(**GREEDY), Unmasking(block=1))
    left = unmask(model, ByteTokenizer(), prompt, Sampling(**GREEDY), Unmasking(order="left_to_right"))
    assert one_by_one == left != whole and len(whole) == 9


def test_an_end_token_ends_the_text() -> None:
    model = encoder(block=2)
    tokens = unmask(model, ByteTokenizer(), [1], Sampling(**GREEDY), Unmasking())
    cut = unmask(model, ByteTokenizer(), [1], Sampling(**GREEDY), Unmasking(), ends=(tokens[4],))
    assert cut == tokens[: tokens.index(tokens[4])]
    on = Sampling(**GREEDY, ignore_eos=True)
    assert unmask(model, ByteTokenizer(), [1], on, Unmasking(), ends=(tokens[4],)) == tokens


def test_what_cannot_be_unmasked_is_refused() -> None:
    model = encoder(block=2)
    lm = TextEncoder(model.spec, model, ByteTokenizer())
    assert lm.unmask("a", {"order": "random"}, max_new_tokens=3, temperature=1.0, seed=1) is not None
    for options, place in (
        (({"block": 4}, {}), "block"),
        (({}, {"regex": "a"}), "regex"),
        (({}, {"max_new_tokens": 64}), "prompt"),
    ):
        with pytest.raises(ArchetypeError, match=rf"^{place}: .*; "):
            lm.unmask("a", options[0], **options[1])
    mixed = model.spec.replace(layers=(model.spec.layers[0], encoder().spec.layers[0]))
    with pytest.raises(ArchetypeError, match=r"^layers\[1\]\.mixer: has other block sizes than layer 0"):
        mixed.block_length  # noqa: B018
