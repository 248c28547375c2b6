"""How a mixer is read from a checkpoint of a family that is not registered: by the names and shapes of its tensors.

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
NameTable = tuple[tuple[str, str], ...]  # patterns of a file's names, and ours; the first that fits counts
# One after the other; those of each head of keys together; each quarter of the heads together (CodeGen).
FusedOrder = Literal["qkv", "qkv_per_head", "qvk_per_quarter"]
DoubledQuery = Literal["query_gate_per_head", "gate_query_per_head", "query_gate", "gate_query"]


@dataclass(frozen=True)
class MixerQuirks:
    """What the code of one family fixes of its mixers.

    Attributes:
        interleaved: rotary pairs are neighbours.
        doubled_query: where that gate lies; None where nobody knows.
        unscaled_scores: scores are not divided by the root of the head's width.
        qk_norm: a norm of queries and keys without weights.
        qk_norm_after_rope: queries and keys are normalized after they are rotated.
        gate_in_queries: a gate on attention's result lies beside each head's query.
        gate_activation: of such a gate.
        mixer_eps: of the norm in a delta network or Mamba-2, where it is not that of the others.
        steps_from_min: no step of Mamba-2 is smaller than `time_step_min`, which elsewhere is of their beginning alone.
        conv_silu: the nonlinearity behind a convolution is SiLU, whatever `hidden_act` says.
        fused_order: how queries, keys and values lie in one tensor; None where nobody knows.
        reversed: rotary pairs are rotated the other way.
        alibi: scores fall with the distance, which no key says.
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
    """The keys of config.json; one that has no number where a number is needed is an error with its name."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands."""

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to `most`."""

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""

    def optional_positive(self, key: str, default: float | None = None) -> float | None:
        """A number above 0, or None."""

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""

    def section(self, key: str) -> "ConfigKeys | None":
        """A nested mapping."""

    def error(self, key: str, cause: str, remedy: str = "") -> CheckpointError:
        """An error at this key."""


@dataclass(frozen=True)
class CheckpointMixer(ABC):
    """The mixer of one layer of a checkpoint.

    Attributes:
        shapes: of its tensors, by our names below `mixer`, such as "q.weight".
        names: of its tensors in the file, by the same names.
        d_model: width of the model, D.
        transposed: whether matrices are kept as (inputs, outputs).
        config: the keys of config.json.
        quirks: what the family's code fixes.
    """

    shapes: Mapping[str, Shape]
    names: Mapping[str, str]
    d_model: int
    transposed: bool
    config: ConfigKeys
    quirks: MixerQuirks

    def shape(self, param: str) -> Shape:
        """The shape of a tensor that the mixer must have.

        Raises:
            CheckpointError: the file has none.
        """
        if param not in self.shapes:
            raise self.missing(f"a mixer without {param.removesuffix('.weight')}")
        return self.shapes[param]

    @abstractmethod
    def sides(self, param: str) -> Shape:
        """Rows and columns of a matrix that the mixer must have.

        Raises:
            CheckpointError: the file has none, or it is no matrix.
        """

    @abstractmethod
    def size(self, keys: tuple[str, ...]) -> int | None:
        """A size, by the first of these keys that the file has, which may list one for each layer; None without."""

    @abstractmethod
    def norm(self, bias: bool, weight: bool = True) -> Norm:
        """A norm of the kind that the model has."""

    @property
    @abstractmethod
    def eps(self) -> float:
        """The number below the root of the model's norms."""

    @abstractmethod
    def position(self, head_dim: int) -> MixerPosition:
        """How attention with heads of so many features knows positions in this layer."""

    @abstractmethod
    def rotary(self, dim: int) -> MixerPosition:
        """Rotary positions of features that all turn."""

    @abstractmethod
    def pattern(self) -> Pattern:
        """Which pairs of positions are seen in this layer."""

    @abstractmethod
    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """One of several layouts that neither keys nor tensors tell apart; the first is assumed, and noted."""

    @abstractmethod
    def assume(self, field: str, value: object, why: str) -> None:
        """Note the value of a field that neither keys nor tensors give."""

    @abstractmethod
    def missing(self, part: str) -> CheckpointError:
        """An error at this layer that names what is missing."""


class Joint(NamedTuple):
    """Parts of ours that lie in one tensor of a file, and how many times they follow each other."""

    parts: Iterable[str]
    times: int


def nothing_joint(mixer: Any, tensors: CheckpointMixer, path: str, name: str) -> Joint | None:
    """Each of the mixer's parts has a tensor of its own."""
    return None


@dataclass(frozen=True)
class MixerReader:
    """How a kind of mixer is recognized and read.

    Attributes:
        names: patterns of its tensors' names below the layer, without `.weight` and `.bias`, and our names.
        read: its specification.
        sign: a pattern of the name of a tensor that shows this kind, and that tensor's axes (absent: what a layer has
            that shows no other kind).
        parameters: as `names`, of tensors that have neither `.weight` nor `.bias`.
        stands_alone: whether a layer may have it without a feed-forward part.
        joint: of a specification, the tensors, our name of one and the file's: what lies in it together.
    """

    names: NameTable
    read: Callable[[CheckpointMixer], Mixer]
    sign: tuple[str, int] | None = None
    parameters: NameTable = ()
    stands_alone: bool = True
    joint: Callable[[Any, CheckpointMixer, str, str], Joint | None] = nothing_joint
