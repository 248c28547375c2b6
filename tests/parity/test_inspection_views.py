"""Views of every position of a longer text, and of a model that scales what it adds: against hooks in transformers.

Granite multiplies what its parts add, its embeddings, scores and logits, so that a factor which is left out shows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import GraniteConfig, GraniteForCausalLM

import archetype
from archetype.api.language_model import LanguageModel
from archetype.errors import UnknownFamily
from archetype.inspection import Inspection
from tests.helpers.cases import case
from tests.helpers.weights import distance, randomize

LENGTH, LAYERS, HEADS = 45, 2, 4
SCALE = 0.22  # of what each part adds
EXACT = 1e-5
SIZES: dict[str, Any] = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
    num_key_value_heads=2, max_position_embeddings=64, residual_multiplier=SCALE, embedding_multiplier=3.0,
    attention_multiplier=0.3, logits_scaling=2.5, tie_word_embeddings=True, attention_bias=True,
    attn_implementation="eager",
)  # fmt: skip


class Seen(NamedTuple):
    """One model in both libraries, the tokens, and what hooks have seen in theirs."""

    theirs: Any
    lm: LanguageModel
    ids: Tensor
    output: Any
    parts: dict[str, Tensor]

    @property
    def inspection(self) -> Inspection:
        """Our views."""
        return self.lm.inspect(self.ids[0].tolist())

    def stream(self, layer: int) -> Tensor:
        """The residual stream after so many layers, (T, D)."""
        return self.parts[f"{layer}.in"] if layer < LAYERS else self.parts[f"{layer - 1}.out"]

    def read(self, x: Tensor) -> Tensor:
        """Logits of vectors."""
        logits: Tensor = self.theirs.lm_head(self.theirs.model.norm(x)) / self.theirs.config.logits_scaling
        return logits


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("granite")
    randomize(GraniteForCausalLM(GraniteConfig(**SIZES))).save_pretrained(folder)
    theirs: Any = GraniteForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with pytest.warns(UnknownFamily, match="granite"):
        lm = archetype.load(folder)
    ids = torch.randint(61, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    ids[0, 30:36] = ids[0, 3:9]  # an earlier text again, late
    parts: dict[str, Tensor] = {}
    for number, layer in enumerate(theirs.model.layers):
        for name, module in (
            ("", layer),
            ("mixer", layer.self_attn),
            ("o", layer.self_attn.o_proj),
            ("feedforward", layer.mlp),
        ):
            module.register_forward_hook(
                lambda module, args, y, place=f"{number}.{name}".rstrip("."): parts.update(
                    {f"{place}.out": (y[0] if isinstance(y, tuple) else y).reshape(-1, 32).clone()}
                    | ({f"{place}.in": args[0].reshape(-1, 32).clone()} if args else {})
                )
            )
    with torch.no_grad():
        output = theirs(ids, output_attentions=True)
    return Seen(theirs, lm, ids, output, dict(parts))


def test_sizes_in_the_residual_stream(seen: Seen) -> None:
    view = seen.inspection.residual()
    streams = torch.stack([seen.stream(layer) for layer in range(LAYERS + 1)])
    assert distance(view.norms, streams.norm(dim=-1)) < EXACT and view.norms.shape == (LAYERS + 1, LENGTH)
    for content in ("mixer", "feedforward"):
        added = SCALE * torch.stack([seen.parts[f"{layer}.{content}.out"] for layer in range(LAYERS)])
        after = streams[1:]
        assert distance(view.added[content], added.norm(dim=-1)) < EXACT
        assert distance(view.shares[content], (added * after).sum(-1) / after.square().sum(-1)) < EXACT
        assert distance(view.added[content], added.norm(dim=-1) / SCALE) > 0.1  # the control: without the factor
    record = view.record()
    assert len(record["tokens"]) == LENGTH == len(record["norms"][0]) == len(record["added"]["mixer"]["share"][0])


@torch.no_grad()
def test_the_lens_of_every_layer_and_position(seen: Seen) -> None:
    lens = seen.inspection.lens(4)
    final = seen.output.logits[0].log_softmax(-1)
    for layer in range(LAYERS + 1):
        with case("after layer", layer):
            logp = seen.read(seen.stream(layer)).log_softmax(-1)
            best = logp.topk(4)
            assert torch.equal(lens.answers[layer], best.indices)
            assert distance(lens.log_probabilities[layer], best.values) < EXACT
            assert (lens.kl[layer] - (final.exp() * (final - logp)).sum(-1)).abs().max() < EXACT
            assert distance(lens.entropy[layer], -(logp.exp() * logp).sum(-1)) < EXACT
            following = seen.ids[0, 1:].tolist()
            ranks = [sorted(-logp[place]).index(-logp[place, token]) for place, token in enumerate(following)]
            assert lens.ranks[layer].tolist() == [*ranks, -1]


def test_weights_and_scores_of_every_head(seen: Seen) -> None:
    view: Any = seen.inspection.attention()
    ids = seen.ids[0].tolist()
    for layer, weights in enumerate(seen.output.attentions):
        rows = weights[0].double().tolist()
        for head in range(HEADS):
            with case(layer, head):
                one: Any = seen.inspection.attention(layer, head)
                assert distance(one.weights, weights[0, head]) < EXACT
                expected = scores_of(rows[head], ids)
                for name, value in expected.items():
                    assert view.statistics[layer][name][head].item() == pytest.approx(value, rel=1e-4), name


def scores_of(weights: list[list[float]], ids: list[int]) -> dict[str, float]:
    """The scores of one head by loops over its queries and keys."""
    queries = range(LENGTH)
    induced = []
    for query in queries:
        after = [place + 1 for place in range(query) if ids[place] == ids[query]]
        if after:
            induced.append(sum(weights[query][place] for place in after))
    return {
        "first": sum(weights[query][0] for query in queries) / LENGTH,
        "previous": sum(weights[query][query - 1] for query in queries[1:]) / (LENGTH - 1),
        "distance": sum(abs(query - key) * weights[query][key] for query in queries for key in queries) / LENGTH,
        "induction": sum(induced) / len(induced),
    }


@torch.no_grad()
@pytest.mark.parametrize("position", [3, 16, 29, -1])
def test_a_logit_as_the_sum_of_its_parts(seen: Seen, position: int) -> None:
    """The last norm's statistics as they are: a part's logit is its own vector's product, whatever the others."""
    place, token = position % LENGTH, 7
    row = seen.theirs.lm_head.weight[token].double() / seen.theirs.config.logits_scaling
    last, norm = seen.stream(LAYERS)[place].double(), seen.theirs.model.norm
    direction = row * norm.weight.double() / (last.square().mean() + norm.variance_epsilon).sqrt()
    expected = {"embedding": seen.stream(0)[place].double() @ direction}
    for layer in range(LAYERS):
        for content in ("mixer", "feedforward"):
            added = SCALE * seen.parts[f"{layer}.{content}.out"][place].double()
            expected[f"layer {layer} {content}"] = added @ direction
    view = seen.inspection.attribution(token, position)
    parts = {part.name: part.logit for part in view.contributions if part.kind != "bias"}
    assert view.position == place and parts.keys() == expected.keys()
    for name, value in expected.items():
        assert parts[name] == pytest.approx(float(value), rel=1e-4, abs=1e-5), name
    assert view.logit == pytest.approx(float(seen.output.logits[0, place, token]), rel=1e-4, abs=1e-5)
    by_head = {part.name: part.logit for part in seen.inspection.attribution(token, position, 1).contributions}
    o = seen.theirs.model.layers[1].self_attn.o_proj
    heads = zip(o.weight.double().split(8, 1), seen.parts["1.o.in"][place].double().split(8), strict=True)
    for head, (weight, x) in enumerate(heads):
        value = float(SCALE * (weight @ x) @ direction)
        assert by_head[f"layer 1 head {head}"] == pytest.approx(value, rel=1e-4, abs=1e-5)
    value = float(SCALE * o.bias.double() @ direction)
    assert by_head["layer 1 bias of o"] == pytest.approx(value, rel=1e-4, abs=1e-5)
    assert sum(by_head.values()) == pytest.approx(view.logit, rel=1e-4, abs=1e-5)


@contextmanager
def patched(seen: Seen, layer: int, place: int) -> Iterator[None]:
    """Their layer gives the clean text's vector at one position."""
    clean = seen.parts[f"{layer}.out"][place]

    def put(module: Any, args: Any, y: Any) -> Any:
        tensor = (y[0] if isinstance(y, tuple) else y).clone()
        tensor[0, place] = clean
        return (tensor, *y[1:]) if isinstance(y, tuple) else tensor

    handle = seen.theirs.model.layers[layer].register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def test_what_a_clean_vector_restores(seen: Seen) -> None:
    """At positions of each of the passes into which a long text is cut."""
    corrupt = seen.ids.clone()
    corrupt[0, [20, LENGTH - 1]] = torch.tensor([5, 11])
    view = seen.inspection.patching(seen.lm.inputs(corrupt[0].tolist()))
    clean, other = seen.output.logits[0, -1], seen.theirs(corrupt).logits[0, -1]
    answers = int(clean.argmax()), int(other.argmax())
    assert answers[0] != answers[1]

    def difference(logits: Tensor) -> float:
        return float(logits[answers[0]] - logits[answers[1]])

    start, end = difference(other), difference(clean)
    assert (view.corrupt, view.clean) == (pytest.approx(start, rel=1e-4), pytest.approx(end, rel=1e-4))
    for layer in range(LAYERS):
        for place in (0, 15, 16, 20, 31, 32, LENGTH - 1):
            with case(layer, place), patched(seen, layer, place):
                effect = (difference(seen.theirs(corrupt).logits[0, -1]) - start) / (end - start)
                assert view.effects[layer, place].item() == pytest.approx(effect, abs=1e-4)
    assert view.effects[-1, -1].item() == pytest.approx(1.0, abs=1e-4)  # the last vector alone answers
    assert view.effects[:, :20].abs().max() < 1e-4  # where both texts are the same
