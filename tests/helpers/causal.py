"""What must hold of every model that writes, whatever its state is made of."""

from itertools import pairwise

import torch
from torch import Tensor

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.generate import Engine, Sampling
from archetype.generate.step import prefill
from archetype.models.build import Model, build
from archetype.models.causal import CausalModel
from archetype.nn.state import State
from archetype.tokenizers import train_tokenizer
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance, randomize

EXACT = 1e-5  # of the logits' largest magnitude, in float32
WRONG = 1e-3  # what every mistake exceeds

ENGLISH = """\
The sun had not yet risen. The sea was indistinguishable from the sky, except that the sea was slightly creased as if a
cloth had wrinkles in it. Gradually as the sky whitened a dark line lay on the horizon dividing the sea from the sky and
the grey cloth became barred with thick strokes moving, one after another, beneath the surface, following each other,
pursuing each other, perpetually.
"""


def drawn(model: spec.CausalSpec, seed: int = 0) -> CausalModel:
    """The model with every tensor random, ready to evaluate."""
    built = build(model)  # tables of whole numbers, such as the experts of a token, are not drawn again
    randomize(built, seed)
    return built.requires_grad_(False)


def text(batch: int, length: int, vocabulary: int, seed: int = 0) -> Tensor:
    """Random tokens."""
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def decoded(
    model: Model, prompts: list[list[int]], sampling: Sampling, stop: tuple[int, ...] = (), slots: int = 32
) -> list[list[int]]:
    """The continuation of each prompt, all in one engine, without the token that ends it."""
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = stop
    engine = Engine(LanguageModel(model.spec, model, tokenizer), slots)
    requests = [engine.submit(prompt, **dict(sampling)) for prompt in prompts]
    for _ in engine.events():
        pass
    assert all(request.finish_reason in ("stop", "length") for request in requests)
    return [request.tokens[:-1] if request.finish_reason == "stop" else request.tokens for request in requests]


def in_chunks(model: CausalModel, tokens: Tensor, state: State, cuts: list[int]) -> Tensor:
    """All logits of a text that is given piece by piece, each with only as much of the state as it needs."""
    pieces = []
    for start, end in pairwise([0, *cuts, tokens.shape[1]]):
        logits, state = forward_step(model, tokens[:, start:end], state.narrow(end))
        pieces.append(logits)
    assert state.lengths.tolist() == [tokens.shape[1]] * tokens.shape[0]
    return torch.cat(pieces, 1)


def chunks_as_whole(model: CausalModel, tokens: Tensor, cuts: list[int]) -> None:
    """A state changes no logits, nor does it matter where a text is cut."""
    logits = in_chunks(model, tokens, model.new_state(tokens.shape[0], tokens.shape[1]), cuts)
    assert distance(logits, model(tokens).logits) < EXACT


def batch_as_single(model: CausalModel, lengths: list[int], step: int) -> None:
    """Rows of different lengths, read by `step` tokens at once: rows that have ended go on with no token at all."""
    vocabulary = model.spec.vocab_size
    rows = [text(1, length, vocabulary, seed) for seed, length in enumerate(lengths)]
    longest = max(lengths)
    padded = torch.cat([torch.cat((row, text(1, longest - row.shape[1], vocabulary, 99)), 1) for row in rows])
    whole = model(padded, num_tokens=torch.tensor(lengths)).logits
    ends = model(padded, num_tokens=torch.tensor(lengths), last_only=True).logits
    alone = [model(row).logits[0] for row in rows]
    for row, length in enumerate(lengths):
        assert distance(whole[row, :length], alone[row]) < EXACT
        assert distance(ends[row, 0], alone[row][-1]) < EXACT
    state = model.new_state(len(rows), longest + 1)
    for start in range(0, longest, step):
        chunk = padded[:, start : start + step]
        num_tokens = (torch.tensor(lengths) - start).clamp(0, chunk.shape[1])
        logits, state = forward_step(model, chunk, state.narrow(start + chunk.shape[1]), num_tokens)
        for row, count in enumerate(num_tokens.tolist()):
            if count:
                assert distance(logits[row, :count], alone[row][start : start + count]) < EXACT
    assert state.lengths.tolist() == lengths
    goes_on(model, state, rows)


def goes_on(model: CausalModel, state: State, rows: list[Tensor]) -> State:
    """One token more for each row of a state, after the texts that it has read; the state after it."""
    newest = text(len(rows), 1, model.spec.vocab_size, 7)
    logits, state = forward_step(model, newest, state, last_only=True)
    for row, before in enumerate(rows):
        expected = model(torch.cat((before, newest[row : row + 1]), 1)).logits
        assert distance(logits[row, 0], expected[0, -1]) < EXACT
    return state


@torch.inference_mode()
def rows_join_and_leave(model: CausalModel, length: int) -> None:
    """Rows that stay, are copied, or are replaced by others of another length and a smaller buffer."""
    vocabulary, context = model.spec.vocab_size, model.spec.context_length
    rows = [text(1, size, vocabulary, size) for size in (length, length - 3, 2)]
    _, state = prefill(model, [row[0].tolist() for row in rows], model.new_state(3, context))
    goes_on(model, state.select(torch.tensor([2, 0, 2])), [rows[2], rows[0], rows[2]])
    others = [text(1, size, vocabulary, 50 + size) for size in (length - 1, 1)]
    _, joining = prefill(model, [row[0].tolist() for row in others], model.new_state(2, length))
    state.insert(torch.tensor([2, 0]), joining)
    goes_on(model, state, [others[1], rows[1], others[0]])


def future_changes_nothing(model: CausalModel, length: int) -> None:
    """No logits follow a later token, and the last follow the last."""
    vocabulary = model.spec.vocab_size
    tokens = text(2, length, vocabulary)
    before = model(tokens).logits
    for seen in range(1, length):
        changed = torch.cat((tokens[:, :seen], (tokens[:, seen:] + 1) % vocabulary), 1)
        after = model(changed).logits
        assert torch.equal(before[:, :seen], after[:, :seen])
        assert distance(before[:, seen], after[:, seen]) > WRONG


def losses_of_training(model: spec.CausalSpec, steps: int, rate: float = 3e-3) -> list[float]:
    """The loss of each step on the bytes of some English; every parameter is reached by the first."""
    built = build(model)
    tokens = torch.tensor(list(ENGLISH.encode()))
    windows = tokens.unfold(0, model.context_length + 1, model.context_length // 2)
    optimizer = torch.optim.AdamW(built.parameters(), rate)
    losses = []
    for _ in range(steps):
        logits = built(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            unreached = [name for name, p in built.named_parameters() if p.grad is None or not p.grad.any()]
            assert unreached == []
        optimizer.step()
        losses.append(loss.item())
    return losses
