"""Temperature: its two limits, the derivative of the entropy, and the frequency of drawn tokens."""

from itertools import pairwise

import torch
from torch import Tensor

from archetype.generate import Sampling
from archetype.generate.filters import filtered
from archetype.generate.sample import Sampler, sample
from archetype.studies.outcome import Control, Curve, Outcome
from archetype.studies.registry import check
from claims.small_models import WRONG, normal, relative_error

TEMPERATURES = (0.25, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0)
VOCABULARY = 12
SIGNIFICANT = 0.001


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the probability with which each token is drawn from logits (V,)."""
    return filtered(logits[None], sampling)[0].softmax(-1)


@check("temperature.limits", claim=22, part="a")
def limits(quick: bool) -> Outcome:
    """Towards 0 the likeliest tokens share all probability; towards infinity all tokens left by filters share it."""
    logits = normal(VOCABULARY)
    tied = logits.clone()
    tied[[2, 7]] = logits.max() + 1
    errors = {}
    for name, scores, best in (("one", logits, [int(logits.argmax())]), ("tied", tied, [2, 7])):
        expected = torch.zeros(VOCABULARY, dtype=torch.float64)
        expected[best] = 1 / len(best)
        errors[f"cold_{name}"] = relative_error(probabilities(scores, Sampling(temperature=1e-4)), expected)
    hot = 1e12
    cases = {"all": Sampling(temperature=hot), "top_k": Sampling(temperature=hot, top_k=5)}
    for name, sampling in cases.items():
        left = probabilities(logits, sampling)
        ruled_in = torch.zeros(VOCABULARY, dtype=torch.float64)
        ruled_in[logits.topk(sampling.top_k or VOCABULARY).indices] = 1
        errors[f"hot_{name}"] = relative_error(left, ruled_in / ruled_in.sum())
    greedy = Sampling(temperature=0.0)
    first = sample(tied[None], [Sampler(greedy, [], VOCABULARY, torch.device("cpu"))])[0]
    warm = relative_error(probabilities(logits, Sampling(temperature=1.0)), ruled_in / ruled_in.sum())
    return Outcome(
        max(errors.values()) <= 1e-10 and first == 2,
        f"at 0.0001 the likeliest token has everything and two equal ones half each, at {hot:.0e} all that top-k "
        f"leaves have the same, to {max(errors.values()):.1e}; at 0 itself the first of equal tokens is taken",
        errors,
        (Control("a temperature of 1", warm, WRONG),),
    )


@check("temperature.entropy", claim=22, part="b")
def entropy(quick: bool) -> Outcome:
    """Entropy rises with temperature, by the variance of the logits over the temperature's cube."""
    logits, error, wrong, curve = normal(64), 0.0, 0.0, []
    for temperature in TEMPERATURES:
        # the temperature is no tensor: logits * u have the temperature T / u, and d(T / u) / du is -T at u = 1
        u = torch.ones((), dtype=torch.float64, requires_grad=True)
        p = probabilities(logits * u, Sampling(temperature=temperature))
        value = -(p * p.log()).sum()
        (slope,) = torch.autograd.grad(value, u)
        slope = -slope / temperature
        mean = (p * logits).sum()
        variance = (p * (logits - mean) ** 2).sum().detach()
        error = max(error, relative_error(slope, variance / temperature**3))
        if temperature != 1:
            wrong = max(wrong, relative_error(slope, variance / temperature**2))
        curve.append(value.item())
    rises = all(one < two for one, two in pairwise(curve))
    return Outcome(
        error <= 1e-10 and rises,
        f"the derivative of the entropy is Var(logits) / T^3 to {error:.1e} at {len(TEMPERATURES)} temperatures, never "
        f"negative: it rises from {curve[0]:.2f} to {curve[-1]:.2f} nats of {torch.tensor(64.0).log().item():.2f}",
        {"error": error, "lowest": curve[0], "highest": curve[-1]},
        (Control("Var(logits) / T^2", wrong, WRONG),),
        (Curve("64 tokens", TEMPERATURES, tuple(curve), "temperature", "entropy (nats)", log_x=True),),
    )


@check("temperature.draws", claim=22, part="c", kind="simulation")
def draws(quick: bool) -> Outcome:
    """Tokens are drawn as often as softmax(logits / T) says."""
    temperatures, number = (TEMPERATURES[::4], 5000) if quick else (TEMPERATURES, 1_000_000)
    logits, values, wrong = normal(VOCABULARY, dtype=torch.float32), {}, []
    for temperature in temperatures:
        counts = drawn(logits, Sampling(temperature=temperature, seed=1), number)
        expected = (logits.double() / temperature).softmax(-1) * number
        values[f"p_{temperature}"] = chi_square(counts, expected)
        if temperature != 1:  # planted mistake: dividing probabilities by T and normalizing them again changes nothing
            wrong.append(chi_square(counts, logits.double().softmax(-1) * number))
    least = min(values.values()) * len(values)  # Holm's first step
    return Outcome(
        least > SIGNIFICANT,
        f"{number:,} draws at each of {len(values)} temperatures fit: the least p is {min(values.values()):.3f}, with "
        f"Holm's correction {min(least, 1.0):.3f}",
        values,
        (Control("a temperature that is applied after softmax (p, its complement)", 1 - max(wrong), 1 - SIGNIFICANT),),
    )


def drawn(logits: Tensor, sampling: Sampling, number: int) -> Tensor:
    """Return how often each token is drawn."""
    sampler = Sampler(sampling, [], len(logits), logits.device)
    counts = torch.zeros(len(logits), dtype=torch.float64)
    for start in range(0, number, 1000):
        rows = min(1000, number - start)
        tokens = sample(logits.expand(rows, -1), [sampler] * rows)
        counts += torch.bincount(torch.tensor(tokens), minlength=len(logits))
    return counts


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """Return the p-value of Pearson's test (1900) of counts against expected ones; rare tokens are pooled."""
    rare = expected < 5
    seen, foreseen = (torch.cat((part[~rare], part[rare].sum()[None])) for part in (counts, expected))
    some = foreseen > 0
    distance = ((seen[some] - foreseen[some]) ** 2 / foreseen[some]).sum()
    freedom = torch.tensor((int(some.sum()) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, distance / 2))
