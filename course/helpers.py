"""What every lesson uses; the build puts this file into each notebook as its second cell."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import matplotlib.pyplot as plt
import torch

STEPS = 1.0  # share of all training steps: 0.1 is ten times as fast, and learns less
answered: dict[int, bool] = {}  # which exercises pass their checks
torch.manual_seed(0)


def reveal(prediction: float | str | None, truth: float | str) -> None:
    """Print what you predicted beside what is true."""
    shown, told = (f"{value:,.6g}" if isinstance(value, int | float) else value for value in (prediction, truth))
    print(f"You predicted {'nothing yet' if prediction is None else shown}. It is {told}.")


@contextmanager
def exercise(number: int) -> Iterator[None]:
    """Say whether the answer to an exercise passes its check; a missing answer stops nothing."""
    answered[number] = False
    try:
        yield
    except Exception as error:
        print(f"Exercise {number}: not yet.", *str(error).splitlines()[:1])
    else:
        answered[number] = True
        print(f"Exercise {number}: right.")


def fit(
    loss: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor], steps: int, rate: float = 3e-3
) -> list[float]:
    """Minimize a loss by Adam, whose rate falls to zero, and return the loss of each step."""
    optimizer, losses = torch.optim.Adam(parameters, lr=rate), []
    steps = max(2, round(steps * STEPS))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses
