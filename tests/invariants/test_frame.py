"""What a block and a stack can say, each by the identity that proves it: with one part, one pass, equal norms or the
plain sum it is the model without, to the bit.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archetype import spec
from archetype.api.extension import load_extension
from archetype.api.language_model import LanguageModel
from archetype.checking.construction import is_built, is_drawn, parameters_are_counted, round_trip, state_is_counted
from archetype.checking.decoding import (
    chunks_are_whole,
    padding_leaves_states,
    rows_join_and_leave,
    state_changes_nothing,
)
from archetype.checking.subject import Subject
from archetype.errors import SpecError
from archetype.generate import Engine
from archetype.generate.beam import finished_targets
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.settings.generation import Beam
from archetype.tokenizers import train_tokenizer
from tests.helpers.combinations import FEEDFORWARDS, MIXERS, combined, text
from tests.helpers.passes import forward_step, taught
from tests.helpers.registered import registries_as_before
from tests.helpers.strategies import CONTEXT
from tests.helpers.weights import distance, randomize

EXACT = 1e-12  # of the largest magnitude, in float64
TOKEN_SHIFT = Path(__file__).parent.parent / "helpers" / "token_shift.py"
BASE = combined({"position": "rotary"})
BLOCK = BASE.layers[0]
Rename = Callable[[str], str]


def stacked(*blocks: spec.Block, **changes: Any) -> spec.Decoder:
    """The base with these blocks."""
    return BASE.replace(layers=blocks, **changes)


def pair(one: spec.Decoder, other: spec.Decoder, renamed: Rename = lambda name: name) -> tuple[nn.Module, nn.Module]:
    """Both models in float64, ready to train; the second has the first's tensors under names of its own."""
    first, second = randomize(build(one).double()), build(other).double()
    second.load_state_dict({renamed(name): tensor for name, tensor in first.state_dict().items()})
    return first.train(), second.train()


def differentiated(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits of whole texts; gradients are left at the model."""
    output = model(tokens)
    loss = output.logits.square().mean()
    (loss if output.aux_loss is None else loss + output.aux_loss).backward()
    return output.logits.detach()


def are_one(first: nn.Module, second: nn.Module, renamed: Rename = lambda name: name) -> None:
    """Logits, gradients, and a text in pieces with a state: equal to the bit."""
    tokens = text(2, CONTEXT)
    assert torch.equal(differentiated(first, tokens), differentiated(second, tokens))
    gradients = {name: parameter.grad for name, parameter in second.named_parameters()}
    for name, parameter in first.named_parameters():
        assert parameter.grad is not None and torch.equal(parameter.grad, gradients[renamed(name)]), name
    with torch.no_grad():
        states = [model.eval().new_state(2) for model in (first, second)]
        for piece in tokens.split([5, 1, 1, 9], dim=1):
            (one, states[0]), (other, states[1]) = (
                forward_step(model, piece, state) for model, state in zip((first, second), states, strict=True)
            )
            assert torch.equal(one, other)
    assert states[0].nbytes == states[1].nbytes


# contents side by side


def within(content: str) -> Rename:
    """The names of a content's tensors as those of the only part of several side by side."""
    return lambda name: name.replace(f".{content}.", f".{content}.parts.0.")


@pytest.mark.parametrize("kind", ["attention", *MIXERS])
def test_a_mixer_together_with_none_is_itself(kind: str) -> None:
    plain = combined({"mixer": kind})
    block = plain.layers[0]
    other = plain.replace(layers=(block.replace(mixer=spec.MixersTogether(parts=(block.mixer,))),))
    are_one(*pair(plain, other, within("mixer")), within("mixer"))


@pytest.mark.parametrize("kind", [kind for kind in FEEDFORWARDS if kind != "none"])
def test_a_feedforward_together_with_none_is_itself(kind: str) -> None:
    plain = combined({"feedforward": kind})
    block = plain.layers[0]
    other = plain.replace(layers=(block.replace(feedforward=spec.FeedForwardsTogether(parts=(block.feedforward,))),))
    are_one(*pair(plain, other, within("feedforward")), within("feedforward"))


def halved(whole: spec.Decoder, other: spec.Decoder, content: str, cut: dict[str, int]) -> None:
    """Two halves of a content side by side, each with its share of every matrix, add up to the whole."""
    first, second = randomize(build(whole).double()).eval(), build(other).double().eval()
    held = {}
    for name, tensor in first.state_dict().items():
        above, _, inner = name.partition(f".{content}.")
        if not inner:
            held[name] = tensor
            continue
        for half, share in enumerate(tensor.chunk(2, cut[inner.partition(".")[0]])):
            held[f"{above}.{content}.parts.{half}.{inner}"] = share
    second.load_state_dict(held)
    tokens = text(2, CONTEXT)
    with torch.no_grad():
        expected = first(tokens).logits
        assert distance(second(tokens).logits, expected) < EXACT
        state = second.new_state(2)
        for place in range(CONTEXT):
            logits, state = forward_step(second, tokens[:, place : place + 1], state)
            assert distance(logits, expected[:, place : place + 1]) < EXACT


def test_two_attentions_of_half_the_heads_are_one() -> None:
    attention = BLOCK.mixer.replace(num_kv_heads=4)
    half = spec.MixersTogether(parts=(attention.replace(num_heads=2, num_kv_heads=2),) * 2)
    whole, other = (stacked(BLOCK.replace(mixer=mixer)) for mixer in (attention, half))
    halved(whole, other, "mixer", {"q": 0, "k": 0, "v": 0, "o": 1})


@pytest.mark.parametrize("kind", [spec.MLP, spec.GatedMLP])
def test_two_networks_of_half_the_features_are_one(kind: type[spec.MLP | spec.GatedMLP]) -> None:
    network = kind(d_ff=12, activation="gelu")
    half = spec.FeedForwardsTogether(parts=(network.replace(d_ff=6),) * 2)
    whole, other = (stacked(BLOCK.replace(feedforward=part)) for part in (network, half))
    halved(whole, other, "feedforward", {"up": 0, "gate": 0, "down": 1})


def test_a_scale_of_a_part_is_one_of_its_output_and_of_what_it_reads() -> None:
    """0.5 F(2 x) + 3 G(x), from the modules themselves."""
    parts = (BLOCK.mixer, MIXERS["mamba2"])
    mixer = spec.MixersTogether(parts=parts, scales=(0.5, 3.0), input_scales=(2.0, 1.0))
    module = randomize(build(stacked(BLOCK.replace(mixer=mixer))).double()).blocks[0].mixer
    x = torch.randn(2, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = module.parts
    with torch.no_grad():
        expected = 0.5 * one(2.0 * x, ForwardContext.of(x)) + 3.0 * other(x, ForwardContext.of(x))
        assert torch.equal(module(x, ForwardContext.of(x)), expected)


# norms by content


NAMES = ("mixer_norm", "feedforward_norm")
SANDWICH = (*NAMES, "mixer_post_norm", "feedforward_post_norm")
WIRINGS: dict[type[spec.Wiring], tuple[str, ...]] = {
    spec.PreNorm: NAMES, spec.PostNorm: NAMES, spec.OutputNorm: NAMES, spec.ParallelResidual: NAMES,
    spec.SandwichNorm: SANDWICH,
}  # fmt: skip


@pytest.mark.parametrize("kind", WIRINGS)
def test_equal_norms_of_each_content_are_one_norm(kind: Any) -> None:
    norm, names = spec.RMSNorm(eps=1e-3), WIRINGS[kind]
    each = kind(norm=spec.LayerNorm(), **dict.fromkeys(names, norm))
    are_one(*pair(stacked(BLOCK.replace(wiring=kind(norm=norm))), stacked(BLOCK.replace(wiring=each))))


def test_a_content_has_the_norm_that_it_names() -> None:
    wiring = spec.SandwichNorm(
        norm=spec.RMSNorm(), mixer_norm=spec.NoNorm(), feedforward_post_norm=spec.LayerNorm(bias=True)
    )
    block = build(stacked(BLOCK.replace(wiring=wiring))).blocks[0]
    norms = {name for name, _ in block.named_parameters() if "_norm." in name}
    assert norms == {
        "mixer_post_norm.weight", "feedforward_norm.weight", "feedforward_post_norm.weight",
        "feedforward_post_norm.bias",
    }  # fmt: skip


def test_a_block_without_a_mixer_is_one_whose_mixer_gives_nothing() -> None:
    without = BLOCK.replace(mixer=spec.NoMixer())
    first, second = build(stacked(BLOCK, without)).double().eval(), build(stacked(BLOCK, BLOCK)).double().eval()
    held = randomize(second).state_dict()
    second.blocks[1].mixer.o.weight.data.zero_()
    first.load_state_dict({name: held[name] for name in first.state_dict()})
    tokens = text(2, CONTEXT)
    with torch.no_grad():
        assert torch.equal(first(tokens).logits, second(tokens).logits)
        logits, state = forward_step(first, tokens[:, :9], first.new_state(2))
        logits, _ = forward_step(first, tokens[:, 9:], state)
        assert distance(logits, second(tokens).logits[:, 9:]) < EXACT


# shared weights


def looped(times: int, *blocks: spec.Block, reinject: bool = False) -> spec.Decoder:
    """A group of layers whose weights all repetitions share."""
    group = {"repeat": times, "shared": True, "reinject": reinject, "blocks": blocks}
    return spec.parse(BASE.dump() | {"layers": [group]})


OTHER = BLOCK.replace(mixer=MIXERS["lstm"], feedforward=FEEDFORWARDS["experts"])


def test_one_pass_over_shared_layers_is_the_plain_stack() -> None:
    assert looped(1, BLOCK, OTHER) == stacked(BLOCK, OTHER)


def unrolled(shared: spec.Decoder) -> tuple[nn.Module, nn.Module]:
    """A model of shared layers and its copy with weights of its own in each layer, which are those of the shared."""
    first = randomize(build(shared).double()).train()
    second = build(shared.replace(layers=tuple(block.own for block in shared.layers))).double().train()
    for index, block in enumerate(second.blocks):
        block.load_state_dict(first.blocks[index].state_dict())
    rest = {name: tensor for name, tensor in first.state_dict().items() if not name.startswith("blocks.")}
    second.load_state_dict(rest, strict=False)
    return first, second


def test_the_unrolled_copy_of_shared_layers_is_the_same_and_its_gradients_sum_to_theirs() -> None:
    shared = looped(3, BLOCK, OTHER)
    first, second = unrolled(shared)
    tokens = text(2, CONTEXT)
    assert torch.equal(differentiated(first, tokens), differentiated(second, tokens))
    for name, parameter in first.named_parameters():
        _, _, inner = name.partition("blocks.")
        index, _, inner = inner.partition(".")
        if not inner:
            expected = second.get_parameter(name).grad
        else:
            layers = range(int(index), len(shared.layers), 2)
            expected = sum(second.get_parameter(f"blocks.{layer}.{inner}").grad for layer in layers)
        assert distance(parameter.grad, expected) < EXACT, name
    with torch.no_grad():
        states = [model.eval().new_state(2) for model in (first, second)]
        assert states[0].nbytes == states[1].nbytes  # each pass keeps what it has read
        for piece in tokens.split([7, 1, 8], dim=1):
            (one, states[0]), (other, states[1]) = (
                forward_step(model, piece, state) for model, state in zip((first, second), states, strict=True)
            )
            assert torch.equal(one, other)


def test_shared_layers_are_one_module_and_one_set_of_tensors() -> None:
    model = build(looped(3, BLOCK))
    assert len(model.blocks) == 3 and all(block is model.blocks[0] for block in model.blocks)
    assert model.state_dict().keys() == build(stacked(BLOCK)).state_dict().keys()


def test_what_is_reinjected_is_the_input_of_the_first_repetition() -> None:
    """By hand, from the blocks themselves."""
    model = randomize(build(looped(3, BLOCK, OTHER, reinject=True)).double()).eval()
    tokens = text(2, CONTEXT)
    context = ForwardContext.of(tokens)
    with torch.no_grad():
        x = first = model.embedding(tokens, context)
        for number in range(3):
            x = x if number == 0 else x + first
            x = model.blocks[1](model.blocks[0](x, context), context)
        expected = model.lm_head(model.final_norm(x, context), model.token_table)
        assert torch.equal(model(tokens).logits, expected)
        assert distance(expected, randomize(build(looped(3, BLOCK, OTHER)).double())(tokens).logits) > 1e-3


@pytest.mark.parametrize("threshold", [None, 0.4, 0.6, 1.0])
def test_between_passes_is_the_final_norm_and_a_token_may_leave_after_each(threshold: float | None) -> None:
    """By hand, from the blocks themselves, and in training, where no token leaves."""
    loop = {"repeat": 3, "shared": True, "norm_between": True, "blocks": (BLOCK, OTHER)}
    exits = {"early_exit": {"threshold": threshold}}
    model = randomize(
        build(spec.parse(BASE.dump() | {"layers": [loop], "final_norm": {"kind": "rms"}} | exits)).double()
    )
    tokens, ends, gates = text(2, CONTEXT), [], []
    context = ForwardContext.of(tokens)
    with torch.no_grad():
        x = model.embedding(tokens, context)
        for _ in range(3):
            x = model.final_norm(model.blocks[1](model.blocks[0](x, context), context), context)
            ends.append(x)
            gates.append(model.exit_gate(x))
        shares = [gates[0], gates[1] * (1 - gates[0])]
        first, second = (sum(shares[: end + 1]) >= (2.0 if threshold is None else threshold) for end in range(2))
        expected = torch.where(first, ends[0], torch.where(second, ends[1], ends[2]))
        logits = [model.lm_head(one, model.token_table) for one in (expected, ends[2])]
        assert distance(model.eval()(tokens).logits, logits[0]) < 1e-12
        assert distance(model.train()(tokens).logits, logits[1]) < 1e-12
    assert (distance(*logits) > 1e-3) == (threshold in (0.4, 0.6))


# what is registered from outside: a residual wiring that adds, and a feed-forward part with a state


@pytest.fixture
def outside() -> Iterator[None]:
    with registries_as_before():
        load_extension(TOKEN_SHIFT)
        yield


@pytest.mark.parametrize("wiring", [spec.PreNorm, spec.SandwichNorm, spec.OutputNorm, spec.ParallelResidual])
@pytest.mark.usefixtures("outside")
def test_a_residual_wiring_that_adds_is_the_sum(wiring: Any) -> None:
    plain = stacked(BLOCK.replace(wiring=wiring(norm=spec.RMSNorm()), residual_scale=0.5), OTHER)
    added = spec.parse(plain.dump() | {"residual": {"kind": "added"}})
    are_one(*pair(plain, added))
    assert plain == spec.parse(plain.dump() | {"residual": "sum"})


def shifting(**changes: Any) -> spec.Decoder:
    """A decoder of two layers whose feed-forward parts read the token before; one stands beside another."""
    mix = {"kind": "channel_mix", "d_ff": 12}
    both = {"kind": "together", "parts": [mix, {"kind": "mlp", "d_ff": 5, "activation": "relu"}]}
    block = BLOCK.dump() | {"feedforward": mix}
    return spec.parse(BASE.dump() | {"layers": [block, block | {"feedforward": both} | changes]})


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize("mixer", ["attention", "lstm", "none"])
def test_a_feedforward_with_a_state_reads_in_pieces_what_it_reads_whole(mixer: str) -> None:
    """Also in padded rows that rest, and among rows that join and leave; it is counted and drawn as it is built."""
    subject = Subject(shifting() if mixer == "attention" else shifting(mixer={"kind": mixer}))
    for check in (state_changes_nothing, chunks_are_whole, padding_leaves_states, rows_join_and_leave):
        check(subject.exact)
    for check in (round_trip, is_built, parameters_are_counted, state_is_counted, is_drawn):
        check(subject)


def written(model: nn.Module, prompts: list[list[int]], **options: Any) -> tuple[list[list[int]], Engine]:
    """The greedy continuation of each prompt, one after the other in one engine."""
    engine = Engine(LanguageModel(model.spec, model, train_tokenizer("bytes", [], None)), **options)
    texts = []
    for prompt in prompts:
        request = engine.submit(prompt, temperature=0.0, max_new_tokens=8, ignore_eos=True)
        request.result()
        texts.append(request.tokens)
    return texts, engine


@pytest.mark.usefixtures("outside")
def test_the_prefix_cache_holds_the_state_of_every_content() -> None:
    model = randomize(build(shifting().replace(context_length=96)).double()).eval()
    beginning = text(1, 60)[0].tolist()
    prompts = [beginning, [*beginning, 3, 1], [*beginning, 4]]
    known, engine = written(model, prompts)
    assert engine.stats().cached_tokens > 0
    assert known == [written(model, [prompt])[0][0] for prompt in prompts]


@pytest.mark.usefixtures("outside")
def test_guesses_are_refused_where_a_content_cannot_go_back() -> None:
    model = randomize(build(shifting()).double()).eval()
    with pytest.raises(SpecError, match="model: the state cannot be rolled back after a rejected draft"):
        written(model, [[1, 2, 3]], lookup=True)


@pytest.mark.usefixtures("outside")
def test_beams_take_the_states_of_all_contents_with_them() -> None:
    """The score of every target found is that of a pass over it as a whole."""
    side = {"layers": [BLOCK.dump() | {"feedforward": {"kind": "channel_mix", "d_ff": 12}}], "final_norm": "rms"}
    crossing = copy.deepcopy(side)
    crossing["layers"][0]["cross_attention"] = {"kind": "attention", "num_heads": 2}
    data = {"kind": "encoder_decoder", "vocab_size": 7, "context_length": 16, "d_model": 8}
    side["layers"][0]["feedforward"] = {"kind": "mlp", "d_ff": 12, "activation": "relu"}
    model = randomize(build(spec.parse(data | {"encoder": side, "decoder": crossing})).double()).eval()
    sources = [[1, 2, 3, 4], [5, 6]]
    for source, targets in zip(
        sources, finished_targets(model, sources, 0, 0, Beam(num_beams=3, length_penalty=0.0)), strict=True
    ):
        ended = [(score, tokens) for score, tokens in targets if len(tokens) < CONTEXT - 1]  # and not by the context
        assert ended
        for score, tokens in ended:
            whole = [*tokens, 0]
            with torch.no_grad():
                logits = taught(model, torch.tensor([source]), torch.tensor([[0, *tokens]]))
            total = float(logits[0].log_softmax(-1)[range(len(whole)), whole].sum())
            assert abs(score - total) < 1e-6
