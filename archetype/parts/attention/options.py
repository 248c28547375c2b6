"""Options of attention: gates, scaling, convolutions and value embeddings."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from archetype.parts.convolutions.spec import Convolutions
from archetype.parts.norm.spec import RMSNorm
from archetype.roles.norm import VectorNorm
from archetype.spec.base import MAX_SIZE, Flag, Length, Positive, Size, Spec
from archetype.spec.sizes import Width


class ProjectionBiases(Spec):
    """Biases of the four attention projections.

    Attributes:
        q: bias of the query projection.
        k: bias of the key projection.
        v: bias of the value projection.
        o: bias of the output projection.
    """

    q: Flag = False
    k: Flag = False
    v: Flag = False
    o: Flag = False


def _all_alike(value: Any) -> Any:
    return dict.fromkeys("qkvo", value) if isinstance(value, bool) else value


def _shortest(value: ProjectionBiases) -> Any:  # written as true or false if all are alike
    flags = {value.q, value.k, value.v, value.o}
    return flags.pop() if len(flags) == 1 else value.dump()


Biases = Annotated[
    ProjectionBiases,
    BeforeValidator(_all_alike, json_schema_input_type=bool | ProjectionBiases),
    PlainSerializer(_shortest),
]


class OutputGate(Spec):
    """Gate on the attention output before the output projection: activation(x Wg) (Qiu 2025).

    Each feature has its own gate, or all features of a head share one. With `bias`, the gate is activation(x Wg + b)
    with a scalar b per head (Beam).

    Attributes:
        per: `feature`: one gate for each feature; `head`: one gate shared by all features of a head.
        activation: activation function of the gate.
        bias: whether each head has a learned bias before the activation.
    """

    per: Literal["feature", "head"] = "feature"
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    bias: Flag = False


class Differential(Spec):
    """Differential attention: weights of head h minus a learned lambda times those of head h + H / 2.

    The difference weights the values of both heads, and the norm normalizes the pair together (Ye 2024). Lambda is
    initialized to 0.8 - 0.6 exp(-0.3 l) in layer l.

    Attributes:
        norm: norm of the output of each pair of heads.
    """

    norm: VectorNorm = RMSNorm(weight=False)


class ValueGate(Spec):
    """Gate on the value embedding of each key/value head: scale * sigmoid(x W).

    Attributes:
        features: number of leading features of x that the gate reads (absent: all).
        scale: factor on the sigmoid, which is about one half at initialization.
    """

    features: Width | None = None
    scale: Positive = 2.0


class ValueEmbedding(Spec):
    """Embedding of token ids for each key/value head, added to the values: v + g * row (nanochat; modded-nanogpt).

    Attributes:
        gate: factor on the row (absent: one learned scalar).
    """

    gate: ValueGate | None = None


class AttentionConvolutions(Convolutions):
    """Short convolutions over attention's input, projected queries, keys and values, and output.

    Canon layers convolve the input (A) and q, k and v (B); Inkling convolves k, v and output.

    Attributes:
        at: any of `input`, `q`, `k`, `v` (before norm and rotation) and `output`.
    """

    at: tuple[Literal["input", "q", "k", "v", "output"], ...] = ("input", "q", "k", "v")


class JointConvolution(Spec):
    """Convolutions over the projected queries and keys of all heads together (CCA, arXiv 2510.04476; ZAYA1).

    The first convolution is depthwise, the second mixes all features of a head; both have biases. The mean of a query's
    projection and its key head's projection is added to the query; the average of these means over a key's query heads
    is added to the key. The second half of the projected values comes from the previous token.

    Attributes:
        kernels: kernel sizes of the two convolutions in positions, including the current token.
    """

    kernels: tuple[Size, Size] = (2, 2)

    @property
    def reach(self) -> int:
        """Number of earlier positions that are read."""
        return sum(self.kernels) - 2


class QueryScale(Spec):
    """Scale queries by 1 + beta ln(1 + floor(i / length)) at position i to sharpen attention in long texts (Llama 4).

    With `form: power` the factor is (1 + i / length)^beta (Beam), and with `form: log_ratio` it is
    1 + beta ln(max(i / length, 1)) (Inkling).

    Attributes:
        beta: strength of the scaling.
        length: number of tokens after which the factor increases.
        offset: index of the first position (1 in Llama 4).
        form: growth of the factor: `log`, logarithmic in steps; `log_ratio`, logarithmic beyond `length`; `power`.
    """

    beta: Positive
    length: Length
    offset: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0
    form: Literal["log", "log_ratio", "power"] = "log"
