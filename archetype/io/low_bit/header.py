"""Header of a quantized checkpoint, and its header after dequantization."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from archetype.errors import CheckpointError
from archetype.io.low_bit.registry import Settings, schemes_of
from archetype.io.low_bit.scheme import Scheme, Shape
from archetype.io.weight_files import Header, TensorHeader

# Scales of activations and of the cache, for low-bit matrix products; weights do not need them.
OF_ACTIVATIONS = re.compile(
    r".*\.(?:input_scale(?:_ub)?|output_scale|activation_scale|[qkv]_scale|kv_scale|(?:input|output|[qkv])_zero_point"
    r"|input_global_scale)"
)
FLOATS = ("BF16", "F16", "F32", "F64")
WHOLE_AS_THEY_ARE = ("I64", "BOOL")  # masks and positions, as in unquantized files


@dataclass(frozen=True)
class LowBit:
    """Quantized tensor in a file.

    Attributes:
        shape: shape after dequantization.
        stored: names of the stored tensors, by role.
    """

    shape: Shape
    stored: Mapping[str, str]
    scheme: Scheme


def plain_header(header: Mapping[str, TensorHeader], settings: Settings) -> Header:
    """Return the header of a checkpoint after dequantization. `settings` is its `quantization_config`.

    Raises:
        CheckpointError: the method is not supported, or a tensor matches none of its schemes.
    """
    return as_plain(header, low_bit_tensors(header, settings))


def low_bit_tensors(header: Mapping[str, TensorHeader], settings: Settings) -> dict[str, LowBit]:
    """Return the quantized tensors of a checkpoint, keyed by their names after dequantization."""
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
        # refused rather than ignored: the model would silently lack a weight
        cause = f"is stored as {tensor.dtype} {list(tensor.shape)}, which {settings['quant_method']} does not explain"
        raise CheckpointError(name, cause, "does quantization_config describe this file?")
    return low_bit


def as_plain(header: Mapping[str, TensorHeader], low_bit: Mapping[str, LowBit]) -> Header:
    """Return the header after dequantization to the most common dtype among the other tensors."""
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
    # the quantized tensor, with its name, of which `name` is the first stored tensor
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
