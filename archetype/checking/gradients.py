"""Checks of training: gradients are finite and reach every parameter."""

import torch
from torch import Tensor

from archetype.checking.passes import WRONG, in_float64
from archetype.checking.subject import Inapplicable, Subject, Violated, vectors
from archetype.models.build import Model
from archetype.nn.comparison import distance

LEAST = 1e-7  # relative to the largest gradient of the model; an untrained router had 2e-11
# A vector that is added to all keys changes all scores of a query by the same number, which softmax ignores. So its
# gradient is 0.
COMMON_TO_ALL_KEYS = ("mixer.k.bias", "mixer.k_global.bias", "mixer.k_norm.bias", "mixer.position_k.bias")


@torch.enable_grad()
def autocast_is_finite(subject: Subject) -> None:
    """Check that outputs and gradients are finite under autocast to bfloat16."""
    model = subject.built().train()
    with torch.autocast(subject.device.type, torch.bfloat16):
        output = model(**subject.inputs())
    loss = vectors(output).float().square().mean()
    (loss if output.aux_loss is None else loss + output.aux_loss).backward()
    if not loss.isfinite():
        raise Violated(f"the loss is {loss.item()}")
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise Violated(f"the gradient of {name} has Inf or NaN")


@torch.enable_grad()
def every_parameter_learns(subject: Subject) -> None:
    """Check that every parameter gets a gradient above rounding errors, in training or evaluation mode."""
    # In training mode, a batch norm cancels a bias before it, so either mode suffices. In float64, a rounding error is
    # much smaller than a gradient.
    model = subject.built(torch.float64)
    if not any(True for _ in model.parameters()):
        raise Inapplicable("has no parameters")
    unreached = _without_gradient(subject, model.train())
    if unreached and (unreached := unreached & _without_gradient(subject, model.eval())):
        others = f", nor do {len(unreached) - 1} others" if len(unreached) > 1 else ""
        raise Violated(f"{min(unreached)} gets no gradient{others}")


def _without_gradient(subject: Subject, model: Model) -> set[str]:
    # A small gradient may be a rounding error, which (unlike a gradient) is not proportional to the scale of the loss.
    gradients, tripled = _gradients(subject, model, 1.0), _gradients(subject, model, 3.0)
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    small = {name for name, gradient in gradients.items() if gradient.abs().max() <= LEAST * largest}
    return {
        name
        for name in small
        if not name.endswith(COMMON_TO_ALL_KEYS)
        if not gradients[name].any() or distance(tripled[name] / 3, gradients[name]) > WRONG
    }


def _gradients(subject: Subject, model: Model, scale: float) -> dict[str, Tensor]:
    model.zero_grad()
    output = model(**{name: in_float64(value) for name, value in subject.inputs().items()})
    vectors = output.hidden if output.text_vectors is None else output.text_vectors
    answers = [vectors if output.logits is None else output.logits, *output.further]
    if (pooled := getattr(model, "pooled", None)) is not None:
        answers.append(pooled(output.hidden))
    torch.manual_seed(0)
    losses = [(answer * torch.randn_like(answer)).square().mean() for answer in answers if answer is not None]
    losses += [] if output.aux_loss is None else [output.aux_loss]
    (scale * torch.stack(losses).sum()).backward()
    parameters = dict(model.named_parameters())
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in parameters.items()}
