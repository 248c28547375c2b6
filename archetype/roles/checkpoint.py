"""Reading a mixer from a checkpoint of an unknown family, by the names and shapes of its tensors.

A mixer's folder has a file `infer.py` with a `MixerReader`, registered by `provides("infer", KIND)(READER)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from archetype.errors import CheckpointError
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition
from archetype.spec.base import MAX_SIZE

Shape = tuple[int, ...]
NameTable = tuple[tuple[str, str], ...]  # (pattern of names in the file, our name); the first match counts
# q, k, v one after the other; interleaved per key head; or interleaved per quarter of the heads (CodeGen).
FusedOrder = Literal["qkv", "qkv_per_head", "qvk_per_quarter"]
DoubledQuery = Literal["query_gate_per_head", "gate_query_per_head", "query_gate", "gate_query"]


@dataclass(frozen=True)
class MixerQuirks:
    """Facts about a family's mixers that only its code tells.

    Attributes:
        interleaved: rotary pairs are adjacent features.
        doubled_query: layout of queries and gates in one tensor (None: unknown).
        unscaled_scores: scores are not divided by sqrt(head_dim).
        qk_norm: queries and keys have a norm without weights.
        qk_norm_after_rope: this norm comes after the rotation.
        gate_in_queries: the output gate is stored together with the queries of each head.
        gate_activation: activation of this gate.
        mixer_eps: eps of the norm in a delta network or Mamba-2, if it differs from that of other norms.
        steps_from_min: `time_step_min` is a lower bound of Mamba-2's step sizes, and not only of their initial values.
        conv_silu: the convolution is followed by SiLU, whatever `hidden_act` says.
        fused_order: layout of queries, keys and values in one tensor (None: unknown).
        reversed: rotary pairs are rotated in the opposite direction.
        alibi: attention has ALiBi biases, which no key says.
    """

    interleaved: bool = False
    doubled_query: DoubledQuery | None = None
    unscaled_scores: bool = False
    qk_norm: bool = False
    qk_norm_after_rope: bool = False
    gate_in_queries: bool = False
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    mixer_eps: float | None = None
    steps_from_min: bool = False
    conv_silu: bool = False
    fused_order: FusedOrder | None = None
    reversed: bool = False
    alibi: bool = False


class ConfigKeys(Protocol):
    """Keys of config.json; a value of the wrong type raises an error that names the key."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the raw value."""

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """Return an integer from 1 to `most`."""

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above 0."""

    def optional_positive(self, key: str, default: float | None = None) -> float | None:
        """Return a number above 0, or None."""

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""

    def section(self, key: str) -> "ConfigKeys | None":
        """Return a nested mapping."""

    def error(self, key: str, cause: str, remedy: str = "") -> CheckpointError:
        """Return an error at this key."""


@dataclass(frozen=True)
class CheckpointMixer(ABC):
    """The mixer of one layer in a checkpoint."""

    shapes: Mapping[str, Shape]  # shapes of its tensors, by our names below `mixer`, such as "q.weight"
    names: Mapping[str, str]  # names of its tensors in the file, by the same keys
    d_model: int
    transposed: bool  # whether matrices are stored as (inputs, outputs)
    config: ConfigKeys
    quirks: MixerQuirks  # what only the family's code tells

    def shape(self, param: str) -> Shape:
        """Return the shape of a required tensor.

        Raises:
            CheckpointError: the file does not have it.
        """
        if param not in self.shapes:
            raise self.missing(f"a mixer without {param.removesuffix('.weight')}")
        return self.shapes[param]

    @abstractmethod
    def sides(self, param: str) -> Shape:
        """Return rows and columns of a required matrix.

        Raises:
            CheckpointError: the file does not have it, or it is not a matrix.
        """

    @abstractmethod
    def size(self, keys: tuple[str, ...]) -> int | None:
        """Return the first of these keys that is present, at this layer if it is a list; None if none is."""

    @abstractmethod
    def norm(self, bias: bool, weight: bool = True) -> Norm:
        """Return a norm of the model's kind."""

    @property
    @abstractmethod
    def eps(self) -> float:
        """The eps of the model's norms."""

    @abstractmethod
    def position(self, head_dim: int) -> MixerPosition:
        """Return the position encoding of this layer's attention with heads of this size."""

    @abstractmethod
    def rotary(self, dim: int) -> MixerPosition:
        """Return rotary positions that rotate all `dim` features."""

    @abstractmethod
    def pattern(self) -> Pattern:
        """Return the attention pattern of this layer."""

    @abstractmethod
    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """Choose among layouts that neither keys nor tensors distinguish: the first is assumed and reported."""

    @abstractmethod
    def assume(self, field: str, value: object, why: str) -> None:
        """Note an assumed value of a field in the report."""

    @abstractmethod
    def missing(self, part: str) -> CheckpointError:
        """Return an error at this layer that names what is missing."""


class Joint(NamedTuple):
    """Our parts that are fused in one tensor of the file, and how often they repeat."""

    parts: Iterable[str]
    times: int


def nothing_joint(mixer: Any, tensors: CheckpointMixer, path: str, name: str) -> Joint | None:
    """Return None: each part has its own tensor."""
    return None


@dataclass(frozen=True)
class MixerReader:
    """Rules by which a kind of mixer is recognized and read.

    Attributes:
        names: patterns of its tensors' names below the layer, without `.weight` and `.bias`, with our names.
        read: returns its specification.
        sign: pattern of a tensor name that identifies this kind, and the number of axes (absent: the default kind, if
            no other is identified).
        parameters: like `names`, for tensors that have neither `.weight` nor `.bias`.
        stands_alone: whether a layer may consist of it without a feed-forward part.
        joint: from the specification, the tensors, our name and the file's, the parts fused in a tensor.
    """

    names: NameTable
    read: Callable[[CheckpointMixer], Mixer]
    sign: tuple[str, int] | None = None
    parameters: NameTable = ()
    stands_alone: bool = True
    joint: Callable[[Any, CheckpointMixer, str, str], Joint | None] = nothing_joint
