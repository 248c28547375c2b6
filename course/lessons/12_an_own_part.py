# %% [markdown]
# # 12. A part of your own, and its verdict
#
# **Question.** You have an idea for a layer. How do you build it, and how do you find out whether it is better?
#
# You write a mixer that Archetype does not have, check that it is causal and that it can decode, and compare it
# with attention over several seeds. Then you compute the verdict of the comparison by hand.
# %% [markdown]
# ## The idea
#
# Attention decides for each token where to look. What if a layer always looks at the recent past, with a memory
# that fades at a learned rate per feature? That is an exponential moving average:
#
# $$m_t = a \odot m_{t-1} + (1 - a) \odot W_v x_t, \qquad y_t = W_o\,(m_t \odot \operatorname{silu}(W_g x_t)),
# \qquad a = \sigma(\lambda)$$
#
# The gate $W_g$ lets a token choose which features of the memory it reads. No cache grows: the state is $m$.
#
# ## Predict
#
# Both models are trained on Python's documentation in sequences of 32 bytes. The one with the average has 4 % fewer
# parameters. Which has the lower loss: `"attention"` or `"average"`? And will the difference between them be larger
# than that between two seeds of the same model?
# %%
prediction = None
# %% [markdown]
# ## The part
#
# A part consists of a class of fields, which defines what a specification can contain, and a module that computes
# it. A mixer's module has a method `new_state` for decoding.
# %%
import math
import pydoc
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

from torch import Tensor, nn

import archetype
from archetype import spec
from archetype.extend import ForwardContext, LayerState, Place


class MovingAverage(spec.Mixer):
    """A gated moving average of values whose decay each feature learns."""

    kind: Literal["moving_average"] = "moving_average"
    slowest: int = 32  # at the start, tokens after which 1/e of the slowest feature is left


@dataclass
class Memory(LayerState):
    """The average after the last token."""

    average: Tensor  # (B, D)


class MovingAverageModule(nn.Module):
    def __init__(self, mixer: MovingAverage, place: Place) -> None:
        super().__init__()
        D = place.d_model
        self.slowest = mixer.slowest
        self.v, self.g, self.o = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.decay = nn.Parameter(torch.empty(D))

    def init_tensor(self, name: str, tensor: Tensor, generator: torch.Generator | None) -> bool:
        """Let features remember 1 to `slowest` tokens."""
        if name == "decay":
            a = torch.exp(-1 / torch.logspace(0, math.log10(self.slowest), len(tensor)))
            tensor.copy_(torch.logit(a))
        return name == "decay"

    def new_state(self, batch: int, capacity: int, dtype: torch.dtype, device: torch.device) -> Memory:
        return Memory(torch.zeros(batch, len(self.decay), dtype=dtype, device=device))

    def forward(self, x: Tensor, context: ForwardContext, state: LayerState | None = None) -> Tensor:
        values, a = self.v(x), self.decay.sigmoid()
        if context.valid is not None:  # padding leaves the memory alone
            values, a = values * context.valid[..., None], torch.where(context.valid[..., None], a, 1.0)
        a = a.expand_as(values)
        average, averages = torch.zeros_like(values[:, 0]) if state is None else state.average, []
        for t in range(x.shape[1]):
            average = a[:, t] * average + (1 - a[:, t]) * values[:, t]
            averages.append(average)
        if state is not None:
            state.average = average
        return self.o(torch.stack(averages, dim=1) * nn.functional.silu(self.g(x)))


archetype.register(MovingAverage, module=MovingAverageModule)
# %% [markdown]
# ## Is it right?
#
# Three things must hold for every causal mixer: no output depends on a later token; reading token by token gives
# the same outputs as reading the whole text at once; and the cost model counts the parameters that are built. (For
# a part in a file, `archetype check FILE` runs twenty checks.)
# %%


def model_spec(mixer, D=32):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "rms"}, "mixer": mixer,
        "feedforward": {"kind": "gated", "d_ff": 64, "activation": "silu"},
    }  # fmt: skip
    sizes = {"version": 1, "vocab_size": 256, "context_length": 32, "d_model": D}
    return {**sizes, "layers": [block], "final_norm": "rms"}


model = archetype.build(model_spec("moving_average"))
tokens = torch.randint(256, (1, 20))
changed = tokens.clone()
changed[0, 15] = (changed[0, 15] + 1) % 256
with torch.no_grad():
    logits = model(tokens).logits
    assert torch.equal(logits[:, :15], model(changed).logits[:, :15])
    assert not torch.allclose(logits[:, 15:], model(changed).logits[:, 15:])
    state, steps = model.new_state(1), []
    for t in range(20):
        output = model(tokens[:, t : t + 1], state)
        state = output.state
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), logits)
report = archetype.cost_report(model.spec, length=32)
assert report.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
print(f"causal, decodes, counted: {report.parameters['total']:,} parameters, {report.state['bytes']} bytes of state")
# %% [markdown]
# ## The comparison
#
# One run of each says little, because another seed gives another loss. So an experiment trains both with the same
# seeds on the same texts in the same order, and asks whether the differences *within the pairs* differ from zero.
# An experiment is plain data, in the form that `archetype compare` reads from a file. (A real study also tunes the
# learning rate of each arm, because one rate rarely suits both: add `tune`.)
# %%
folder = Path(tempfile.mkdtemp())
text = "".join(pydoc.plain(pydoc.render_doc(kind)) for kind in (str, list, dict, int, float, bytes, set))
(folder / "docs.txt").write_text(text, encoding="utf-8")

tokens = max(2560, round(64_000 * STEPS))
experiment = {
    "version": 1,
    "title": "A moving average in place of attention",
    "parts": [
        {
            "id": "average", "type": "trained", "says": "A moving average has a lower loss on short texts",
            "base": model_spec({"kind": "attention", "num_heads": 4, "position": "rotary"}),
            "arms": {"attention": {}, "average": {"layers[*].mixer": {"kind": "moving_average"}}},
            "data": "docs",
            "recipe": {
                "batch_size": 8, "sequence_length": 32, "optimizer": {"kind": "adamw", "learning_rate": 0.01},
                "schedule": {"kind": "wsd"},
            },
            "seeds": 6, "decide": {"kind": "difference"}, "expect": {"verdict": "open"},
            "modes": {"full": {"tokens": tokens}},
        }
    ],
}  # fmt: skip
# %%
from archetype.extend import compare, summary_text

outcome = compare(experiment, store=folder / "runs", data_dir=folder)
print(summary_text(outcome))
# %% [markdown]
# The verdict names what is missing: nothing has shown yet that comparisons on *this machine* can tell a real
# difference from none. `archetype compare calibrate` shows it, and `compare plan` says how long it takes: a model
# compared with itself must give "no difference shown", and a model of twice the width must be "shown" to be
# better. You can compute what the numbers say yourself.
#
# ## The verdict by hand
#
# Let $d_s$ be the difference of the pair with seed $s$, in bits per byte. The interval of 95 % of their mean is
# $\bar d \pm t\, s_d / \sqrt n$, with $t = 2.571$ for six pairs. The sign-flip test asks: if neither arm were
# better, each $d_s$ could just as well have the other sign. For what share of all $2^6$ choices of signs is the
# mean at least as far from zero?
# %%
(part,) = outcome["parts"]
values = part["comparisons"][0]["values"]
differences = [new - old for old, new in zip(values["attention"], values["average"], strict=True)]
half = 2.570582 * stdev(differences) / math.sqrt(len(differences))
by_hand = [mean(differences), mean(differences) - half, mean(differences) + half]
flipped = [abs(mean(s * d for s, d in zip(signs, differences, strict=True))) for signs in product((1, -1), repeat=6)]
p = mean(value >= abs(mean(differences)) - 1e-12 for value in flipped)

reveal(prediction, min(values, key=lambda arm: mean(values[arm])))
for arm, losses in values.items():
    print(f"{arm:9}", " ".join(f"{loss:.3f}" for loss in losses))
print(f"difference {by_hand[0]:+.3f}, 95 %: {by_hand[1]:+.3f} to {by_hand[2]:+.3f}; sign-flip p = {p:.3f}")
assert all(abs(a - b) < 1e-4 for a, b in zip(by_hand, part["effect"]["effect"], strict=True))

figure, axes = plt.subplots(1, 2, figsize=(7, 2.6))
for arm, curve in part["comparisons"][0]["curves"].items():
    axes[0].plot(curve["step"], curve["mean"], label=arm)
    axes[0].fill_between(curve["step"], curve["low"], curve["high"], alpha=0.3)
axes[0].set(xlabel="step", ylabel="training loss, nats")
axes[0].legend()
axes[1].plot(differences, "o")
axes[1].axhline(0, color="gray", linestyle=":")
axes[1].axhspan(by_hand[1], by_hand[2], alpha=0.2)
axes[1].set(xlabel="seed", ylabel="average - attention")
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# * A part needs fields, a module and one line of registration. Costs, decoding, training and comparison then
#   support it.
# * The claim of an experiment is about pairs: same seed, same text, one change.
# * An interval that contains zero says "not shown". It does not say that both are equal: more pairs detect smaller
#   differences, and `equivalence` is a separate question.
# * A result holds for what was run: this size, this text, texts of 32 bytes, this learning rate. With longer texts
#   a memory of $D$ numbers must lose what attention can still look up (lesson 2). Try it.
# %% [markdown]
# ## Exercises
#
# **1.** Compute all averages at once, without a loop over positions: `values` (T, D), `a` (D,), a memory of zeros
# before. (Hint: $m_t = \sum_{s \le t} (1 - a)\, a^{t-s}\, v_s$.)
# %% exercise 1
def averages_at_once(values, a):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    values_, a = torch.randn(12, 5), torch.rand(5)
    m, expected = torch.zeros(5), []
    for value in values_:
        m = a * m + (1 - a) * value
        expected.append(m)
    torch.testing.assert_close(averages_at_once(values_, a), torch.stack(expected))


# %% [markdown]
# **2.** With `n` pairs, what is the smallest p that a two-sided sign-flip test can give? So how many pairs does a
# verdict at 5 % need at least? Return both for a given `n` and level.
# %% exercise 2
def smallest_p(n):
    raise NotImplementedError("Write your answer in the cell above.")


def pairs_needed(level):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    assert smallest_p(6) == 2 / 64 and smallest_p(3) == 0.25
    assert pairs_needed(0.05) == 6 and pairs_needed(0.01) == 8


# %% [markdown]
# **3.** A fixed decay instead of a learned one: derive a module from `MovingAverageModule` whose `decay` is not
# trained, register it under a new kind `fixed_average`, and build a model with it.
# %% exercise 3
def fixed_model():
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    fixed = fixed_model()
    decay = dict(fixed.named_parameters())["blocks.0.mixer.decay"]
    assert fixed.spec.layers[0].mixer.kind == "fixed_average" and not decay.requires_grad
