"""What is copied of an earlier text: as many tokens as both have in common, and nothing that is chosen differs by it.

The lengths lie around a window's width, around the shortest beginning that is worth copying, and around whole texts.
"""

from typing import Any

import pytest
import torch

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.families.llama import llama
from archetype.families.mistral import mistral
from archetype.generate import scheduler, slots
from archetype.generate.engine import Engine
from archetype.generate.slots import MIN_SHARED
from archetype.models.build import build
from archetype.nn.state import State
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.weights import randomize

WINDOW = 24
SIZES: dict[str, Any] = dict(
    num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24, vocab_size=40, context_length=96
)
MODELS: dict[str, spec.Decoder] = {
    "everything is seen": llama(**SIZES),
    "a window": mistral(**SIZES, window=WINDOW),
    "a window in one of two layers": spec.assign(
        llama(**SIZES | {"num_layers": 2}), [f"layers[0].mixer.pattern={{kind: window, size: {WINDOW}}}"]
    ),
}  # fmt: skip
LENGTHS = (MIN_SHARED - 1, MIN_SHARED, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 5)


def tokens(count: int, seed: int) -> list[int]:
    ids: list[int] = torch.randint(1, 40, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def loaded(name: str) -> LanguageModel:
    model = randomize(build(MODELS[name], dtype=torch.float64)).eval()
    return LanguageModel(MODELS[name], model)


def written(engine: Engine, prompt: list[int], count: int = 4) -> tuple[list[int], list[float], int]:
    """The tokens that follow a prompt, their log-probabilities, and how many of the prompt were copied."""
    request = engine.submit(prompt, max_new_tokens=count, temperature=0.0, logprobs=0, ignore_eos=True)
    logprobs = [event.logprobs.logprob for event in request if event.logprobs is not None]
    return request.tokens, logprobs, request.num_cached


@pytest.mark.parametrize("name", every(2, MODELS))
def test_a_beginning_is_copied_and_changes_nothing(name: str) -> None:
    """The second prompt begins with all that was read, with the first prompt, or with a part of it."""
    lm = loaded(name)
    alone = Engine(lm, prefix_bytes=0)
    for length in LENGTHS:
        first, rest = tokens(length, seed=length), tokens(3, seed=100 + length)
        followed, _, copied = written(Engine(lm), first)
        assert copied == 0
        read = [*first, *followed[:-1]]  # the last token was chosen, and never read
        other = followed[0] % 39 + 1
        for prompt, shared, is_whole in (
            ([*read, *rest], len(read), True),
            ([*first, other, *rest], length, True),
            ([*first[: length - 2], first[-2] % 39 + 1, *rest], length - 2, False),
            (first, length - 1, False),
        ):
            engine = Engine(lm)
            written(engine, first)
            with case(name, length, shared):
                expected = written(alone, prompt)
                ids, logprobs, copied = written(engine, prompt)
                assert ids == expected[0] and logprobs == pytest.approx(expected[1], abs=1e-10)
                # a window that has wrapped round cannot go back within a text
                least = shared if is_whole or name == "everything is seen" else 0
                assert copied in ({least, shared} if shared >= MIN_SHARED else {0})


@pytest.mark.parametrize("name", MODELS)
def test_a_state_that_the_cache_does_not_hold_is_not_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt is held once, in the row in which it is decoded."""
    lm, copied = loaded(name), []

    def copy_rows(*arguments: Any) -> State:
        copied.append(slots_copy(*arguments))
        return copied[-1]

    slots_copy = slots.copy_rows
    for module in (slots, scheduler):
        monkeypatch.setattr(module, "copy_rows", copy_rows)
    for size, is_copied in ((0, False), (1, False), (2**20, True)):
        copied.clear()
        written(Engine(lm, prefix_bytes=size), tokens(40, seed=0))
        assert bool(copied) == is_copied, size
