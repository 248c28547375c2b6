"""Check of a model's weights for NaN."""

from torch import nn

from archetype.errors import CheckpointError


def check_numbers(model: nn.Module, place: str) -> None:
    """Raise an error if a tensor has NaN: nothing can be compared with such a model, nor learned from it.

    Args:
        place: what the model is, for the error's message.

    Raises:
        CheckpointError: names the first such tensor.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            cause = "has entries that are not numbers (NaN)"
            raise CheckpointError(f"{place}: {name}", cause, "use another checkpoint")
