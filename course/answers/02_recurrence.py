# %% exercise 1
def linear_gradient(a, w, n):
    return w * a**n


# %% exercise 2
import math


def forget_bias(half_life):
    gate = 0.5 ** (1 / half_life)
    return math.log(gate / (1 - gate))


# %% exercise 3
def clipped(gradients, max_norm):
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    factor = min(1.0, max_norm / norm)
    return [factor * gradient for gradient in gradients]
