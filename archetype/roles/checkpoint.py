"""Interface for reading a mixer from a checkpoint of an unknown family, from the names and shapes of its tensors.

A mixer's folder has a file `infer.py` with a `MixerReader`, registered by `provides("infer", KIND)(READER)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from archetype.errors import CheckpointError
from archetype.roles.activation import Activation
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition
from archetype.spec.base import MAX_SIZE

Shape = tuple[int, ...]
NameTable = tuple[tuple[str, str], ...]  # (pattern of names in the file, our name); the first match is used
# q, k, v one after the other; interleaved per key head; or interleaved per quarter of the heads (CodeGen).
FusedOrder = Literal["qkv", "qkv_per_head", "qvk_per_quarter"]
DoubledQuery = Literal["query_gate_per_head", "gate_query_per_head", "query_gate", "gate_query"]


@dataclass(frozen=True)
class MixerQuirks:
    """Facts about a family's mixers that are only in its code, not in config.json or the tensors."""

    interleaved: bool = False  # rotary pairs are adjacent features
    index_interleaved: bool = False  # the same in the index of sparse attention
    index_rotates: Literal["first", "last"] = "first"  # features of the index that rotate
    index_eps_is_shared: bool = False  # the norm of the index's keys has `eps` of the model's norms
    doubled_query: DoubledQuery | None = None  # layout of queries and gates in one tensor (None: unknown)
    unscaled_scores: bool = False  # scores are not divided by sqrt(head_dim)
    qk_norm: bool = False  # queries and keys have a norm without weights
    qk_norm_eps: float | None = None  # its eps, if it differs from that of the other norms
    qk_norm_after_rope: bool = False  # this norm comes after the rotation
    gate_in_queries: bool = False  # the output gate is stored together with the queries of each head
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"  # activation of this gate
    # eps of the norm in a delta network or Mamba-2, if it differs from the other norms' eps
    mixer_eps: float | None = None
    # `time_step_min` is a lower bound of Mamba-2's step sizes, and not only of their initial values
    steps_from_min: bool = False
    # layout of queries, keys and values in one tensor (None: unknown); MiMo-V2.5 has `num_key_value_heads` shards in
    # every layer, for any number of key heads
    fused_order: FusedOrder | Literal["qkv_per_shard"] | None = None
    reversed: bool = False  # rotary pairs are rotated in the opposite direction
    # latent attention rotates `qk_rope_head_dim` features, and the class replaces `head_dim` by their number
    head_dim_replaced: bool = False
    value_norm: bool = False  # values have an RMSNorm without weights
    output_norms: bool = False  # inputs of the output projections of attention and networks have one as well
    share_is_of_head: bool = False  # latent attention: `partial_rotary_factor` is about a whole head, not its part
    latents_scaled: bool = False  # latents are multiplied by sqrt(d_model / rank)
    latents_eps_is_shared: bool = False  # norms of latents have `eps` of the model's norms
    yarn_scales_scores: bool = True  # latent attention's scores also have YaRN's factor of `mscale_all_dim`
    unrotated: bool = False  # latent attention has no rotary positions, regardless of its keys
    # exponent and length of a power of its position that multiplies a query in layers without rotary positions
    query_power: tuple[float, int] | None = None
    alibi: bool = False  # attention has ALiBi biases, though no key of config.json says so


class ConfigKeys(Protocol):
    """Keys of config.json. A value of the wrong type raises an error that names the key."""

    @property
    def values(self) -> Mapping[str, Any]: ...

    def get(self, key: str, default: Any = None) -> Any: ...

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int: ...  # from 1 to `most`

    def positive(self, key: str, default: float | None = None) -> float: ...

    def optional_positive(self, key: str, default: float | None = None) -> float | None: ...

    def flag(self, key: str, default: bool) -> bool: ...

    def section(self, key: str) -> "ConfigKeys | None": ...  # a nested mapping

    def error(self, key: str, cause: str, remedy: str = "") -> CheckpointError: ...


@dataclass(frozen=True)
class CheckpointMixer(ABC):
    """The mixer of one layer in a checkpoint."""

    shapes: Mapping[str, Shape]  # shapes of its tensors, by our names below `mixer`, such as "q.weight"
    names: Mapping[str, str]  # names of its tensors in the file, by the same keys
    d_model: int
    transposed: bool  # whether matrices are stored as (inputs, outputs)
    config: ConfigKeys
    quirks: MixerQuirks

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
        """Return the numbers of rows and columns of a required matrix.

        Raises:
            CheckpointError: the file does not have it, or it is not a matrix.
        """

    @abstractmethod
    def size(self, keys: tuple[str, ...]) -> int | None:
        """Return the value of the first key that is present, for this layer if it is a list; None if all are absent."""

    @property
    @abstractmethod
    def number(self) -> int: ...  # index of the layer

    @abstractmethod
    def block_of(self, layer: int) -> int: ...  # index of the block that has the mixer of a layer of the file

    @abstractmethod
    def entry(self, key: str) -> Any:
        """Return the value of a key, for this layer if it is a list; None if the key is absent."""

    @abstractmethod
    def norm(self, bias: bool, weight: bool = True) -> Norm: ...  # like the model's other norms

    @abstractmethod
    def activation(self) -> Activation: ...  # like the model's gated networks

    @property
    @abstractmethod
    def eps(self) -> float: ...  # `eps` of the model's norms

    @abstractmethod
    def position(self, head_dim: int) -> MixerPosition:
        """Return the position encoding of this layer's attention with heads of this size."""

    @abstractmethod
    def rotary(self, dim: int, head_dim: int) -> MixerPosition:
        """Return rotary positions that rotate all `dim` features of one part of a head of `head_dim`."""

    @abstractmethod
    def pattern(self) -> Pattern: ...

    @abstractmethod
    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """Assume the first of the values that neither keys nor tensors distinguish, and report the assumption."""

    @abstractmethod
    def assume(self, field: str, value: object, why: str) -> None:
        """Report that the value of a field is assumed."""

    @abstractmethod
    def missing(self, part: str) -> CheckpointError: ...  # names what is missing at this layer


class Joint(NamedTuple):
    """Our tensors that one tensor of the file stores.

    Attributes:
        parts: names of our tensors, in the order of the file.
        times: how often they repeat in it.
        rows: first row and end of the rows that it has, if it is one of several that store our tensor.
    """

    parts: Iterable[str]
    times: int = 1
    rows: tuple[int, int] | None = None


@dataclass(frozen=True)
class MixerReader:
    """Rules that recognize and read a kind of mixer."""

    names: NameTable  # names of its tensors in a layer, without `.weight` and `.bias`
    read: Callable[[CheckpointMixer], Mixer]  # returns the specification
    # name pattern and number of dimensions of a tensor that identifies this kind; a kind without a sign is the
    # default, if no other is identified
    sign: tuple[str, int] | None = None
    parameters: NameTable = ()  # like `names`, for tensors whose names do not end in `.weight` or `.bias`
    stands_alone: bool = True  # whether a layer may have this mixer and no feed-forward part
    # (specification, tensors, our name, name in the file) -> the parts that this tensor of the file holds
    joint: Callable[[Any, CheckpointMixer, str, str], Joint | None] = lambda mixer, tensors, path, name: None
    # (specification, tensors, our name) -> zeros behind our numbers
    padding: Callable[[Any, CheckpointMixer, str], int] = lambda mixer, tensors, param: 0
