"""A header in few bits, seen as the header of the tensors that it stands for."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from archetype.errors import CheckpointError
from archetype.io.low_bit.registry import Settings, schemes_of
from archetype.io.low_bit.scheme import Scheme, Shape
from archetype.io.weight_files import Header, TensorHeader

# Scales of activations and of the cache, for products that are computed in few bits themselves; no weight needs them.
OF_ACTIVATIONS = re.compile(
    r".*\.(?:input_scale(?:_ub)?|output_scale|activation_scale|[qkv]_scale|kv_scale|(?:input|output|[qkv])_zero_point"
    r"|input_global_scale)"
)
FLOATS = ("BF16", "F16", "F32", "F64")
WHOLE_AS_THEY_ARE = ("I64", "BOOL")  # masks and positions, which files in full precision have too


@dataclass(frozen=True)
class LowBit:
    """A tensor that a file stores in few bits.

    Attributes:
        shape: of the tensor.
        stored: the names of what is stored for it, by their role.
        scheme: by which its numbers follow.
    """

    shape: Shape
    stored: Mapping[str, str]
    scheme: Scheme


def plain_header(header: Mapping[str, TensorHeader], settings: Settings) -> Header:
    """The header that a checkpoint would have if its tensors were stored as they are.

    Args:
        header: of the file: type and shape of each tensor.
        settings: its `quantization_config`.

    Raises:
        CheckpointError: the method is not read, or a tensor is not of any of its schemes.
    """
    return as_plain(header, low_bit_tensors(header, settings))


def low_bit_tensors(header: Mapping[str, TensorHeader], settings: Settings) -> dict[str, LowBit]:
    """The tensors that a checkpoint stores in few bits, by their own names.

    Raises:
        CheckpointError: as in `plain_header`.
    """
    schemes = schemes_of(settings)
    low_bit: dict[str, LowBit] = {}
    for name in header:
        for scheme in schemes:
            if (match := _match(name, header, scheme)) is not None:
                low_bit.setdefault(*match)
                break
    explained = {part for tensor in low_bit.values() for part in tensor.stored.values()}
    for name, tensor in header.items():
        if name in explained or tensor.dtype in (*FLOATS, *WHOLE_AS_THEY_ARE) or OF_ACTIVATIONS.fullmatch(name):
            continue
        cause = (
            f"is stored as {tensor.dtype} {list(tensor.shape)}, of which {settings['quant_method']} explains nothing"
        )
        raise CheckpointError(name, cause, "does quantization_config describe this file?")
    return low_bit


def as_plain(header: Mapping[str, TensorHeader], low_bit: Mapping[str, LowBit]) -> Header:
    """The header with low-bit tensors in the place of what is stored for them, in the commonest type of the others."""
    owners = {part: name for name, tensor in low_bit.items() for part in tensor.stored.values()}
    others = {name for name in header if name not in owners and not OF_ACTIVATIONS.fullmatch(name)}
    types = Counter(header[name].dtype for name in others if header[name].dtype in FLOATS)
    dtype = types.most_common(1)[0][0] if types else "BF16"
    plain: Header = {}
    for name, tensor in header.items():
        if (owner := owners.get(name)) is not None:
            plain[owner] = TensorHeader(dtype, low_bit[owner].shape)
        elif name in others:
            plain[name] = tensor
    return plain


def _match(name: str, header: Mapping[str, TensorHeader], scheme: Scheme) -> tuple[str, LowBit] | None:
    """The tensor for which `name` is the first of what a scheme stores, with its own name."""
    for names in scheme.names:
        ending = next(iter(names.stored.values()))
        if not name.endswith(ending):
            continue
        stem = name[: len(name) - len(ending)]
        stored = {role: stem + end for role, end in names.stored.items()}
        if not all(part in header for part in stored.values()):
            continue
        stored |= {role: stem + end for role, end in names.optional.items() if stem + end in header}
        shape = scheme.shape({role: header[part] for role, part in stored.items()})
        if shape is not None and scheme.applies(stem + names.plain):
            return stem + names.plain, LowBit(shape, stored, scheme)
    return None
