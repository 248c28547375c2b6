"""Activations of feed-forward layers."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from archetype.roles.activation import Activation, FixedActivation
from archetype.spec.base import Positive
from archetype.spec.kinds import part


@part
class NoActivation(Activation):
    """Identity: x."""

    is_absent: ClassVar[bool] = True
    num_saved: ClassVar[int] = 0
    kind: Literal["none"] = "none"


@part
class ReLU(Activation):
    """max(x, 0)."""

    title: ClassVar[str] = "ReLU"
    num_saved: ClassVar[int] = 0
    kind: Literal["relu"] = "relu"


@part
class GELU(Activation):
    """x Phi(x), with the exact normal distribution function Phi (Hendrycks 2016)."""

    title: ClassVar[str] = "GELU"
    gate_kernel: ClassVar[str] = "gelu"
    kind: Literal["gelu"] = "gelu"


@part
class GELUTanh(Activation):
    """x Phi(x) with the tanh approximation (Hendrycks 2016), as in GPT-2."""

    title: ClassVar[str] = "GELU"
    gate_kernel: ClassVar[str] = "gelu_tanh"
    kind: Literal["gelu_tanh"] = "gelu_tanh"


@part
class SiLU(Activation):
    """x * sigmoid(x) (Hendrycks 2016; Elfwing 2017)."""

    title: ClassVar[str] = "SiLU"
    gate_kernel: ClassVar[str] = "silu"
    kind: Literal["silu"] = "silu"


@part
class Tanh(Activation):
    """The hyperbolic tangent of x."""

    title: ClassVar[str] = "tanh"
    num_saved: ClassVar[int] = 0
    kind: Literal["tanh"] = "tanh"


@part
class Sigmoid(Activation):
    """1 / (1 + exp(-x))."""

    title: ClassVar[str] = "sigmoid"
    num_saved: ClassVar[int] = 0
    kind: Literal["sigmoid"] = "sigmoid"


@part
class ReLU2(Activation):
    """max(x, 0)^2 (So 2021)."""

    title: ClassVar[str] = "ReLU²"
    kind: Literal["relu2"] = "relu2"


@part
class Swish(Activation):
    """x * sigmoid(beta * x) (Ramachandran 2017).

    Attributes:
        beta: steepness; beta = 1 is `silu`.
    """

    title: ClassVar[str] = "swish"
    num_saved: ClassVar[int] = 2  # both factors of the product are saved
    kind: Literal["swish"] = "swish"
    beta: Positive


@part
class SiTU(Activation):
    """beta * tanh(x / beta) * sigmoid(x): SiLU with a bound (Kimi K3, Inkling 2).

    Attributes:
        beta: bound of the output.
    """

    title: ClassVar[str] = "SiTU"
    num_saved: ClassVar[int] = 3  # the tanh, and both factors of the product
    kind: Literal["situ"] = "situ"
    beta: Positive


@part
class XIELU(Activation):
    """a x^2 + b x for x > 0, otherwise c (exp(x) - 1 - x) + b x, with learned a and c (Huang 2024; Apertus).

    a = softplus(`alpha_p`) and c = b + softplus(`alpha_n`). The constant b = 0.5 is stored but not trained.
    """

    title: ClassVar[str] = "xIELU"
    is_fixed: ClassVar[bool] = False
    num_parameters: ClassVar[int] = 2
    kind: Literal["xielu"] = "xielu"


@part
class PolyNorm(Activation):
    """w_3 norm(x^3) + w_2 norm(x^2) + w_1 norm(x) + b, with RMS norms over all features (Zhuo 2024; Motif).

    Attributes:
        eps: epsilon of the norms.
    """

    title: ClassVar[str] = "PolyNorm"
    is_fixed: ClassVar[bool] = False
    num_parameters: ClassVar[int] = 4
    num_saved: ClassVar[int] = 3  # x and its powers
    kind: Literal["poly_norm"] = "poly_norm"
    eps: Positive = 1e-6


@part
class GaussianTopK(Activation):
    """f(max(x - c, 0)) with c = mean + z std over all features: only the largest features are not zero (Gemma 3n).

    z is the quantile of the standard normal distribution below which a share of its values is.

    Attributes:
        share: share of the features that are zero if they are normally distributed.
        activation: activation f of what exceeds the cutoff c.
    """

    title: ClassVar[str] = "Gaussian top-k"
    is_fixed: ClassVar[bool] = False  # it reads all features
    kind: Literal["gaussian_top_k"] = "gaussian_top_k"
    share: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.95
    activation: FixedActivation = GELUTanh()

    @property
    def num_saved(self) -> int:  # type: ignore[override]
        # x, and what f saves of what exceeds the cutoff, which is saved anyway
        return 1 if self.activation.is_absent else 1 + max(self.activation.num_saved, 1)
