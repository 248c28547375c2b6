"""Specification of n-gram models."""

from typing import Literal

from pydantic import model_validator

from archetype.models.initialization_spec import GPT2Initialization, Initialization
from archetype.models.spec import CausalSpec
from archetype.parts.activation.spec import Tanh
from archetype.parts.head.spec import LanguageModelHead
from archetype.roles.activation import FixedActivation
from archetype.roles.head import NextTokenHead
from archetype.spec.base import Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Context, Vocabulary, WideWidth, Width


@part
class NGram(CausalSpec):
    """Next-token prediction from the last `n` tokens by an MLP (Bengio 2003); n = 1 is the bigram model.

    `hidden` lists the widths of the layers. Vectors before the start of a sequence are zero.

    Attributes:
        vocab_size: vocabulary size, V.
        context_length: maximum sequence length in tokens.
        n: number of tokens that the model reads.
        d_model: width of the token vectors, D.
        hidden: widths of the hidden layers.
        activation: activation of the hidden layers.
        head: head that reads the final vectors.
        initialization: initialization of the weights.
    """

    kind: Literal["ngram"] = "ngram"
    vocab_size: Vocabulary
    context_length: Context
    n: Size
    d_model: Width
    hidden: tuple[WideWidth, ...] = ()
    activation: FixedActivation = Tanh()
    head: NextTokenHead = LanguageModelHead(bias=True)
    initialization: Initialization = GPT2Initialization()

    @property
    def width(self) -> int:
        return self.hidden[-1] if self.hidden else self.n * self.d_model

    @model_validator(mode="after")
    def _head_fits(self) -> "NGram":
        if self.head.shares_table and self.width != self.d_model:
            cause = f"the head reads {self.width} features, but the embedding has {self.d_model}"
            invalid("head.tied", cause, f"make the last entry of hidden {self.d_model}, or remove tied")
        return self
