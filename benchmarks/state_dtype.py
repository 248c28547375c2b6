"""What keys and values of fewer bits change: divergence and most likely tokens, against a state in float32.

    python -m benchmarks.state_dtype MODEL

The texts are the model's own, sampled at temperature 1 with a state in float32. Every state reads the same texts token
by token, by recorded steps, so that the native kernels read the rounded keys and values. KL is that of the next token,
KL(float32 || fewer bits) in nats, averaged over all positions; the last column is over the last quarter of each text.
"""

import argparse
from typing import Any, NamedTuple

import torch
from torch import Tensor

import archetype
from archetype.api.text_generator import TextGenerator
from archetype.generate import DecodeStep, Engine
from archetype.generate.state_dtype import STATE_DTYPES
from archetype.models.causal import CausalModel
from archetype.native.kernels import plain_operations
from benchmarks.machine import heading

DTYPES = tuple(name for name in STATE_DTYPES if name != "float32")


class Difference(NamedTuple):
    """How the predictions of one state differ from those of another."""

    kl: float  # mean over positions, in nats
    largest_kl: float
    agreement: float  # share of positions with the same most likely token
    last_kl: float  # mean over the last quarter


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, help="of each text (default: those of the context)")
    chosen = parser.parse_args()
    lm = archetype.load(chosen.model, "float32", "cpu").expect(TextGenerator)
    texts = sampled(lm, chosen.texts, chosen.tokens or lm.model.spec.context_length)
    exact = logits(lm, texts)
    print(heading(f"python -m benchmarks.state_dtype, {texts.shape[0]} texts of {texts.shape[1]} tokens"))
    print("| state | bytes of a token | mean KL | largest KL | same most likely token | mean KL, last quarter |")
    print("|---|---|---|---|---|---|")
    show("float32, torch's operations", lm, differences(exact, logits(lm, texts, is_recorded=False)))
    for dtype in DTYPES:
        lm.use_state_dtype(dtype)
        show(dtype, lm, differences(exact, logits(lm, texts)))


def sampled(lm: TextGenerator, count: int, length: int) -> Tensor:
    """Texts of the model with seeds 0, 1, ..., (count, length), each beginning with the start token or token 0."""
    start = lm.special.get("bos_token_id") or 0
    engine = Engine(lm, slots=count, prefix_bytes=0)
    options: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 1.0,
        "ignore_eos": True,
        "max_new_tokens": length - 1,
    }
    requests = [engine.submit([start], seed=seed, **options) for seed in range(count)]
    for _ in engine.events():
        pass
    return torch.tensor([[start, *request.tokens] for request in requests])


@torch.inference_mode()
def logits(lm: TextGenerator, texts: Tensor, is_recorded: bool = True) -> Tensor:
    """Of every position, (texts, length, V), decoded token by token with a fresh state."""
    model = lm.model
    assert isinstance(model, CausalModel)
    state = model.new_state(*texts.shape)
    if is_recorded:
        step = DecodeStep(model, state)
        return torch.stack([step(newest[:, None]).float().clone() for newest in texts.T], dim=1)
    logits = []
    with plain_operations():
        for newest in texts.T:
            output = model(newest[:, None], state)
            state = output.state
            logits.append(output.logits[:, 0].float())
    return torch.stack(logits, dim=1)


def differences(exact: Tensor, others: Tensor) -> Difference:
    """Compare the logits of all positions."""
    logs, other = exact.double().log_softmax(-1), others.double().log_softmax(-1)
    kl = (logs.exp() * (logs - other)).sum(-1)  # (texts, length)
    same = (exact.argmax(-1) == others.argmax(-1)).double().mean()
    return Difference(float(kl.mean()), float(kl.max()), float(same), float(kl[:, -(kl.shape[1] // 4) :].mean()))


def show(name: str, lm: TextGenerator, difference: Difference) -> None:
    """Print a row."""
    assert isinstance(lm.model, CausalModel)
    per_token = lm.model.new_state(1, 2).nbytes - lm.model.new_state(1, 1).nbytes
    kl, largest, agreement, last = difference
    print(f"| {name} | {per_token:,} | {kl:.1e} | {largest:.1e} | {agreement:.3%} | {last:.1e} |")


if __name__ == "__main__":
    main()
