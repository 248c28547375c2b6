"""What GGUF, the format of llama.cpp, asks of every architecture, and errors for what llama.cpp does not compute."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from archetype.errors import CheckpointError
from archetype.families.rules import Rule
from archetype.models.block.spec import Block
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.models.spec import ModelSpec
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.roles.activation import Activation

Value = str | int | float | bool
Keys = dict[str, Value]


@dataclass(frozen=True)
class Gguf:
    """How one family stands in GGUF.

    Attributes:
        architecture: what llama.cpp calls it.
        keys: what it asks of a model, without the architecture's prefix; refuses what llama.cpp does not compute.
        rules: tensors of the file and parameters of the model.
        paired: whether llama.cpp turns neighbouring features of queries and keys, where the model turns halves.
        offset: added to the weights of norms.
        fixed: keys that are the same for every model.
    """

    architecture: str
    keys: Callable[[ModelSpec], Keys]
    rules: tuple[Rule, ...]
    paired: bool = False
    offset: float = 0.0
    fixed: Mapping[str, Value] = field(default_factory=dict)

    def metadata(self, model: ModelSpec) -> Keys:
        """All keys of a model.

        Raises:
            CheckpointError: names the field that llama.cpp does not compute.
        """
        return {**self.keys(model), **self.fixed}


def unsupported(place: str, what: str, remedy: str = "export with --format hf") -> CheckpointError:
    """The error for a field that llama.cpp does not compute."""
    return CheckpointError(place, f"llama.cpp does not know {what}", remedy)


def sizes(model: Decoder | Encoder | EncoderDecoder, num_blocks: int) -> Keys:
    """The keys that every architecture has."""
    return {
        "context_length": model.context_length,
        "embedding_length": model.d_model,
        "block_count": num_blocks,
        "vocab_size": model.vocab_size,
    }


def check_activations(layers: Iterable[Block], known: tuple[Activation, ...], place: str = "layers[{i}]") -> None:
    """Refuse feed-forward parts with an activation that is none of the known ones."""
    for index, block in enumerate(layers):
        part = block.feedforward
        network = part.expert if isinstance(part, MixtureOfExperts) else part
        if isinstance(network, MLP | GatedMLP) and network.activation not in known:
            names = " or ".join(repr(activation.kind) for activation in known)
            field = f"{place.replace('{i}', str(index))}.feedforward.activation"
            raise unsupported(field, f"{network.activation.kind!r} here, only {names}")
