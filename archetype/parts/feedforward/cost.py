"""Cost of feed-forward networks."""

from collections.abc import Mapping

from archetype.cost.formula import Counts, Formula, constant, multiple
from archetype.cost.registry import FeedForwardCost, NormCost, cost_of, linear
from archetype.cost.work import TrainingWork
from archetype.parts.convolutions.cost import ConvolutionsCost
from archetype.parts.feedforward import spec
from archetype.parts.gain.cost import GainCost


@cost_of(spec.MLP)
class MLPCost(FeedForwardCost[spec.MLP | spec.GatedMLP]):
    """Cost of an up projection, an activation and a down projection."""

    inputs: tuple[str, ...] = ("up",)  # projections that read the input
    saved_inner = 1  # saved vectors of the inner width, in addition to the activation's
    state_name = "convolution state"

    def __init__(self, part: spec.MLP | spec.GatedMLP, d: Formula) -> None:
        super().__init__(part, d)
        self.inner = multiple("F", part.width(d.value), d)
        self.norm = NormCost.of(part.hidden_norm, self.inner)
        self.gain = GainCost(part.hidden_gain, self.inner)
        widths = {"input": d, "hidden": len(self.inputs) * self.inner, "output": d}
        self.convolutions = ConvolutionsCost(part.convolutions, widths)

    def parameters(self) -> Counts:
        up, down = (self.part.has_bias(name) for name in ("up", "down"))
        counts = dict.fromkeys(self.inputs, linear(self.d, self.inner, up)) | {"down": linear(self.inner, self.d, down)}
        if not self.part.hidden_norm.is_absent:
            counts["hidden_norm"] = self.norm.parameters()
        if self.part.hidden_gain is not None:
            counts |= {f"{name}_gain": self.gain.parameters() for name in self.inputs}
        trained = self.part.activation.num_parameters
        counts |= self.convolutions.parameters()
        return counts | ({"activation": constant(trained)} if trained else {})

    def projection_sizes(self) -> Mapping[str, tuple[Formula, Formula]]:
        return dict.fromkeys(self.inputs, (self.d, self.inner)) | {"down": (self.inner, self.d)}

    def tensors(self) -> Counts:
        """Parameters by tensor, with separate biases, as in a stack of experts."""
        names = (*self.inputs, "down")
        sizes = {name: self.d if name == "down" else self.inner for name in names}
        biases = {f"{name}_bias": size for name, size in sizes.items() if self.part.has_bias(name)}
        return dict.fromkeys(names, self.d * self.inner) | biases

    def flops(self, tokens: Formula) -> Counts:
        products = dict.fromkeys((*self.inputs, "down"), 2 * tokens * self.d * self.inner)
        return products | self.convolutions.flops(tokens)

    def state(self, length: int) -> int:
        return self.convolutions.state()

    def saved_activations(self, work: TrainingWork, tokens: int | None = None) -> int:
        """Bytes of the projections' inputs, the activation's input or output, and the factors of a gate.

        Args:
            tokens: number of vectors read (default: one per token).
        """
        num_tokens = work.tokens if tokens is None else tokens
        activation = self.part.activation
        vectors = self.saved_inner + activation.num_saved
        if isinstance(self.part, spec.GatedMLP):
            is_computed_again = bool(activation.gate_kernel) and not self.part.changes_factors  # by the backward pass
            vectors += 2 * (self.part.limit is not None) + (self.part.up_bound is not None) - is_computed_again
        inputs = work.input_bytes(self.d.value, tokens=num_tokens)
        saved = inputs + num_tokens * self.inner.value * vectors * work.itemsize
        saved += len(self.inputs) * self.gain.saved_activations(num_tokens, work)
        return saved + self.norm.saved_activations(num_tokens) + self.convolutions.saved_activations(work)

    def hidden_gradient(self, work: TrainingWork, tokens: int | None = None) -> int:
        # one vector of the inner width per token
        return (work.tokens if tokens is None else tokens) * self.inner.value * work.itemsize


@cost_of(spec.GatedMLP)
class GatedMLPCost(MLPCost):
    """Cost of a gated MLP: the activation of a second projection multiplies the first."""

    inputs = ("gate", "up")
    saved_inner = 3


@cost_of(spec.NoFeedForward)
class NoFeedForwardCost(FeedForwardCost):
    def flops(self, tokens: Formula) -> Counts:
        return {}

    def saved_activations(self, work: TrainingWork) -> int:
        return 0
