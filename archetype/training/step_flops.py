"""FLOPs of a training step, with or without frozen weights."""

from archetype.estimate.report import cost_report
from archetype.models.spec import ModelSpec
from archetype.nn.parameter_roles import roles_of
from archetype.parts.adapter.module import adapter_parameters
from archetype.training.memory import StepMemoryCost
from archetype.training.recipe import Recipe

PER_WEIGHT = 2  # FLOPs per token


def step_flops(recipe: Recipe, spec: ModelSpec, batch_size: int, length: int | None) -> float:
    """Return the FLOPs of a training step, without activation recomputation.

    If everything is trained, a step takes three times the FLOPs of the forward pass: each product has a gradient with
    respect to its input and another with respect to its weight. Frozen weights need no weight gradient, and input
    gradients end at the first trained block.

    Args:
        recipe: recipe that determines the trained parameters.
        batch_size: sequences per step.
        length: tokens per sequence (default: the model's context).
    """
    report = cost_report(spec, batch_size, length)
    train = report.flops["train"]
    if recipe.trainable is None and recipe.adapter is None:
        return train
    cost = StepMemoryCost(recipe.replace(dtype="float32"), spec)  # the type changes no number of FLOPs
    model, forward, share = cost.model, train / 3, cost.share_of_blocks_with_gradients
    # products of two activations, such as queries and keys: no weights, two input gradients
    of_scores = sum(row.forward for row in report.rows if row.in_block and row.owners and not row.parameters)
    of_head = sum(row.forward for row in report.rows if not row.in_block)
    of_weights = forward - of_scores
    added, roles = adapter_parameters(model), roles_of(model)
    # roles of weights in products; an embedding is only looked up unless the head is tied to it
    multiplied = ("hidden", "head", *(("embedding",) if cost.cost.head.tied else ()))
    weights = [model.get_parameter(name) for name, role in roles.items() if role in multiplied and name not in added]
    trained = sum(w.numel() for w in weights if w.requires_grad) / max(1, sum(w.numel() for w in weights))
    num_added = sum(model.get_parameter(name).numel() for name in added)
    of_adapter = PER_WEIGHT * num_added * batch_size * report.length
    # input gradients of the blocks from the first trained one, and of the head above them
    of_inputs = share * (of_weights - of_head + 2 * of_scores) + (of_head if share else 0)
    # 3: an adapter's products have both gradients
    return forward + of_inputs + trained * of_weights + 3 * of_adapter
