"""Specification of initialization schemes, implemented in `models/initialization.py`."""

from typing import Annotated, Literal

from pydantic import Field

from archetype.spec.base import Positive, Spec
from archetype.spec.kinds import Named
from archetype.spec.sizes import Width

__all__ = ["GPT2Initialization", "Initialization", "MuPInitialization", "NormalInitialization", "XavierInitialization"]


class NormalInitialization(Spec):
    """All weights N(0, std), biases 0, norms 1 (the published Llama and BERT code).

    Attributes:
        std: standard deviation.
    """

    kind: Literal["normal"] = "normal"
    std: Positive = 0.02


class GPT2Initialization(Spec):
    """Like normal, but weights that write to the residual stream have std / sqrt(2 L) (Radford 2019, section 2.3).

    Attributes:
        std: standard deviation of the weights that do not write to the residual stream.
    """

    kind: Literal["gpt2"] = "gpt2"
    std: Positive = 0.02


class XavierInitialization(Spec):
    """Uniform with variance 2 / (fan in + fan out) (Glorot 2010); embeddings N(0, 1/d_model) (Vaswani 2017)."""

    kind: Literal["xavier"] = "xavier"


class MuPInitialization(Spec):
    """Maximal update parametrization: the learning rate of a narrow model transfers to a wide one (Yang 2021).

    Hidden matrices have std sqrt(base_width / fan in) times `std`; embedding and head have `std` at any width (table
    8). The optimizer multiplies the learning rate of hidden matrices by base_width / d_model. Logits must be scaled by
    base_width / d_model (`head.scale`), and scores by 1 / head_dim if heads get wider; `spec.widen` adds heads instead.

    Attributes:
        std: standard deviation, for hidden matrices at the base width.
        base_width: d_model for which the learning rate was tuned.
    """

    kind: Literal["mup"] = "mup"
    std: Positive = 0.02
    base_width: Width = 256


Initialization = Annotated[
    NormalInitialization | GPT2Initialization | XavierInitialization | MuPInitialization,
    Field(discriminator="kind"),
    Named(),
]
