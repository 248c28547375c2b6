"""Named schemes of random initial weights; `nn/initialization.py` draws them."""

from typing import Annotated, Literal

from pydantic import Field

from archetype.spec.base import Named, Positive, Spec

__all__ = ["GPT2Initialization", "Initialization", "NormalInitialization", "XavierInitialization"]


class NormalInitialization(Spec):
    """All weights N(0, std), biases 0, norms 1 (the published Llama and BERT code).

    Attributes:
        std: standard deviation.
    """

    kind: Literal["normal"] = "normal"
    std: Positive = 0.02


class GPT2Initialization(Spec):
    """As normal, but what is added to the residual stream has std / sqrt(2 L) (Radford 2019, section 2.3).

    Attributes:
        std: standard deviation of all other weights.
    """

    kind: Literal["gpt2"] = "gpt2"
    std: Positive = 0.02


class XavierInitialization(Spec):
    """Uniform with variance 2 / (fan in + fan out) (Glorot 2010); embeddings N(0, 1/d_model) (Vaswani 2017)."""

    kind: Literal["xavier"] = "xavier"


Initialization = Annotated[
    NormalInitialization | GPT2Initialization | XavierInitialization, Field(discriminator="kind"), Named()
]
