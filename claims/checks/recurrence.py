"""Recurrent mixers and attention: length of the chain of dependent steps, and decay of the gradient with the lag."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from archetype.models.initialization import initialize
from archetype.models.initialization_spec import XavierInitialization
from archetype.native.torch_hooks import without_onednn
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import build_mixer
from archetype.parts.attention.spec import Attention
from archetype.parts.mamba.spec import Mamba
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.roles.mixer import Mixer
from archetype.studies.outcome import Axes, Control, Curve, Outcome
from archetype.studies.registry import check
from claims.fit import line, mean_interval
from claims.small_models import normal

WIDTH = 64
CHUNK = 16
MIXERS: dict[str, Mixer] = {
    "rnn": RNN(), "lstm": LSTM(), "gru": GRU(), "attention": Attention(num_heads=4),
    "mamba": Mamba(), "mamba2": Mamba2(num_heads=4, head_dim=16, state_size=16, chunk_size=CHUNK),
}  # fmt: skip


class LongestChain(TorchDispatchMode):
    """Record the length of the longest chain of operations that each tensor depends on; views do not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.before: dict[int, int] = {}  # length of the chain by storage
        self.alive: list[Any] = []  # keeps results alive, so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            depth = 1 + max((self.depth(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), default=-1)
            for tensor in tree_leaves(result):
                if isinstance(tensor, Tensor):
                    self.before[tensor.untyped_storage()._cdata] = depth
        self.alive.append(result)
        return result

    def depth(self, tensor: Tensor) -> int:
        return self.before.get(tensor.untyped_storage()._cdata, 0)


def chain(mixer: Mixer, length: int) -> int:
    """Return the longest chain of dependent operations from a text of `length` positions to a mixer's output."""
    module = build_mixer(mixer, Place(WIDTH))
    initialize(module, XavierInitialization(), 1, 0)
    x = normal(1, length, WIDTH, dtype=torch.float32)
    # fused kernels would count as one operation
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), without_onednn(), LongestChain() as counter:
        y: Tensor = module(x, ForwardContext.of(x), None)
    depth: int = counter.depth(y)
    return depth


@check("recurrence.chain", claim=17, part="a", kind="analytic")
def chain_length(quick: bool) -> Outcome:
    """A recurrence is a chain of T dependent steps, attention of a constant number, a state space of T / chunk."""
    lengths = (32, 64) if quick else (32, 64, 128, 256)
    chains = {name: [chain(mixer, length) for length in lengths] for name, mixer in MIXERS.items()}
    by_token = {name: line(lengths, counts).slope for name, counts in chains.items()}
    recurrent = min(by_token[name] for name in ("rnn", "lstm", "gru"))
    x = tuple(map(float, lengths))
    axes: Axes = {"x_name": "tokens", "y_name": "operations in a chain", "log_x": True, "log_y": True}
    text = ", ".join(f"{name} {slope:.2f}" for name, slope in by_token.items())
    return Outcome(
        recurrent >= 1 and by_token["attention"] == 0 and by_token["mamba2"] < 1,
        f"operations that must wait for one another, for each further token: {text}; attention has "
        f"{chains['attention'][0]} at any length, Mamba 2 a few for each chunk of {CHUNK}; Mamba's scan as computed "
        "here goes token by token, "
        "one multiply-add each, though its recurrence is linear and could go as log T",
        {f"{name}_by_token": slope for name, slope in by_token.items()} | {"attention": chains["attention"][0]},
        (Control("an LSTM held for attention (operations a token)", by_token["lstm"], 0.0),),
        tuple(Curve(name, x, tuple(map(float, counts)), **axes) for name, counts in chains.items()),
    )


def gradient_by_lag(mixer: Mixer, lags: Sequence[int], seed: int, inputs: float, forget_bias: float) -> list[float]:
    """Return |d y_T / d x_(T - k)| of one random direction at each lag k, at initialization.

    Args:
        lags: k, rising.
        seed: of weights and inputs.
        inputs: standard deviation of the inputs.
        forget_bias: added to the bias of an LSTM's forget gate.
    """
    length, module = lags[-1] + 1, build_mixer(mixer, Place(WIDTH))
    initialize(module, XavierInitialization(), 1, seed)
    if forget_bias:
        with torch.no_grad():
            # torch orders the gates input, forget, cell, output
            module.cell.bias_ih_l0[WIDTH : 2 * WIDTH] += forget_bias  # type: ignore[union-attr, index, operator]
    x = (inputs * normal(8, length, WIDTH, seed=2 * seed)).requires_grad_()
    y = module.double()(x, ForwardContext.of(x), None)[:, -1]
    (gradient,) = torch.autograd.grad((y * normal(*y.shape, seed=2 * seed + 1)).sum(), x)
    norms = gradient.norm(dim=-1).log().mean(0).exp()
    return [norms[length - 1 - lag].item() for lag in lags]


SMALL = 0.02  # of a table's vectors as they are drawn: cells are then nearly linear
ARMS: Mapping[str, tuple[Mixer, float, float]] = {  # mixer, addition to the forget gate's bias, expected slope
    "rnn": (RNN(), 0.0, -0.55),
    "lstm": (LSTM(), 0.0, -0.69),
    "lstm_forget_bias_1": (LSTM(), 1.0, -0.31),
    "gru": (GRU(), 0.0, math.nan),
    "attention": (Attention(num_heads=4), 0.0, 0.0),
}


@check("recurrence.gradient", claim=17, part="b", kind="initialization")
def gradient(quick: bool) -> Outcome:
    """At initialization the gradient falls exponentially with the lag in recurrent mixers, but not in attention."""
    draws, lags = (4, range(4, 17)) if quick else (20, range(4, 25))
    slopes, intervals, curves = {}, {}, []
    for name, (mixer, bias, _) in ARMS.items():
        for inputs in (SMALL, 1.0):
            norms = [gradient_by_lag(mixer, lags, seed, inputs, bias) for seed in range(draws)]
            fits = [line(lags, torch.tensor(one).log().tolist()).slope for one in norms]
            slopes[name, inputs], intervals[name, inputs] = sum(fits) / draws, mean_interval(fits)
            means = tuple(torch.tensor(norms).log().mean(0).exp().tolist())
            label = f"{name}, inputs of deviation {inputs}"
            curves.append(Curve(label, tuple(map(float, lags)), means, "lag (tokens)", "gradient", log_y=True))
    agree = all(
        math.isnan(expected) or abs(slopes[name, SMALL] - expected) <= (0.02 if name == "attention" else 0.1)
        for name, (_, _, expected) in ARMS.items()
    )
    apart = all(
        intervals[name, inputs][1] < intervals["attention", inputs][0] for name, inputs in slopes if name != "attention"
    )
    text = ", ".join(f"{name.replace('_', ' ')} {slopes[name, SMALL]:.2f} ({slopes[name, 1.0]:.2f})" for name in ARMS)
    return Outcome(
        agree and apart,
        f"ln of the gradient changes with each token of distance by {text}, with inputs of deviation {SMALL} (of 1), "
        "where -0.55, -0.69, -0.31, none and 0 were expected: an LSTM's falls slower than its memory alone, for the "
        "way through its hidden vector adds to it; attention's has no exponential term, but T about equal shares",
        {f"slope_{name}_inputs_{inputs}": slope for (name, inputs), slope in slopes.items()}
        | {f"low_{name}": intervals[name, SMALL][0] for name in ARMS}
        | {f"high_{name}": intervals[name, SMALL][1] for name in ARMS},
        (Control("an LSTM held for attention (slope)", abs(slopes["lstm", SMALL]), 0.02),),
        tuple(curves),
    )
