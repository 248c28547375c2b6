"""Head that returns one vector per text: token vectors are pooled, and optionally transformed and normalized."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from archetype.parts.activation.spec import Tanh
from archetype.roles.activation import FixedActivation
from archetype.roles.head import Head
from archetype.spec.base import Flag, Spec
from archetype.spec.kinds import part
from archetype.spec.sizes import Width

PoolingMode = Literal["first", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class DenseLayer(Spec):
    """Dense layer applied to the pooled vector of a text.

    Attributes:
        width: width of the layer's output.
        activation: activation of the layer.
        bias: whether the layer has a bias.
    """

    width: Width
    activation: FixedActivation = Tanh()
    bias: Flag = True


@part
class SentenceEmbeddingHead(Head):
    """Sentence embedding: one vector per text, for comparing texts (Reimers 2019).

    Vectors of several poolings are concatenated. `mean_sqrt_len` divides the sum by the square root of the number of
    tokens; `weighted_mean` weights the n-th token by n (Muennighoff 2022).

    Attributes:
        pooling: poolings of the token vectors: first, max, mean, mean_sqrt_len, weighted_mean or last.
        layers: layers applied to the pooled vector in order.
        normalize: whether the vector is scaled to unit length.
    """

    embeds: ClassVar[bool] = True
    kind: Literal["sentence_embedding"] = "sentence_embedding"
    pooling: Annotated[tuple[PoolingMode, ...], BeforeValidator(_as_list), Field(min_length=1)] = ("mean",)
    layers: tuple[DenseLayer, ...] = ()
    normalize: Flag = True

    def width(self, d_model: int) -> int:
        return self.layers[-1].width if self.layers else d_model * len(self.pooling)
