"""Formats of compressed-tensors, as written by llm-compressor, with one scheme per group in `config_groups`.

Weights are computed as in its compressors (`decompress`): in the dtype of the scales, NVFP4 rounded to bfloat16.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.packed_fp4 import PackedFP4
from archetype.io.low_bit.packed_int import PackedInt
from archetype.io.low_bit.scaled import FLOAT8, SCALE_BESIDE, Scaled, block_of
from archetype.io.low_bit.scheme import Names, Scheme, Shape
from archetype.io.weight_files import TensorHeader

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PACKED = {"weight": ".weight_packed", "scale": ".weight_scale"}
DENSE = "dense"  # format of a section that compresses nothing
IN_THE_WEIGHTS = {"weight_input", "weight_output"}  # locations of transforms that are folded into the weights


def _scaled(types: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Scheme]:
    def scheme(weights: Mapping[str, Any]) -> Scheme:
        return Scaled((SCALE_BESIDE,), types, block_of(weights, "block_structure"), "scale")

    return scheme


def _packed_int(weights: Mapping[str, Any]) -> Scheme:
    bits = weights.get("num_bits")
    if not isinstance(bits, int) or not 1 <= bits <= 8:
        raise CheckpointError("num_bits", f"{bits!r} is not a number from 1 to 8", "fix the file")
    return PackedInt(bits)


FORMATS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "pack-quantized": _packed_int,
    "int-quantized": _scaled(("I8",)),
    "float-quantized": _scaled(FLOAT8),
    "naive-quantized": _scaled(("I8", *FLOAT8)),
    "mxfp8-quantized": _scaled(FLOAT8),
    "nvfp4-pack-quantized": lambda weights: PackedFP4(
        (Names(".weight", PACKED | {"matrix_scale": ".weight_global_scale"}),), matrix_scale="divided", rounded=True
    ),
    "mxfp4-pack-quantized": lambda weights: PackedFP4((Names(".weight", PACKED),), scales=("U8",), rounded=True),
}


@dataclass(frozen=True)
class Targeted(Scheme):
    """Scheme for one group of modules, in a file with several groups.

    Attributes:
        targets: names of modules, or `re:` and a pattern. The name of a class matches every module.
    """

    scheme: Scheme
    targets: tuple[str, ...]

    @property
    def names(self) -> tuple[Names, ...]:  # type: ignore[override]
        return self.scheme.names

    def applies(self, name: str) -> bool:
        # a target matches the whole name of the tensor's module, or its end
        module = name.rpartition(".")[0]
        return any(
            re.match(target[3:], module) is not None
            if target.startswith("re:")
            else "." not in target or module == target or module.endswith(f".{target}")
            for target in self.targets
        )

    def shape(self, stored: Mapping[str, TensorHeader]) -> Shape | None:
        return self.scheme.shape(stored)

    def rows(self, stored: Mapping[str, "Tensor"], first: int, last: int, dtype: "torch.dtype") -> "Tensor":
        return self.scheme.rows(stored, first, last, dtype)


def compressed_tensors(settings: Mapping[str, Any]) -> Sequence[Scheme]:
    """Return the schemes of all groups. Groups that name modules precede groups that name classes."""
    sparsity = settings.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == DENSE):
        raise CheckpointError("sparsity_config", "is not supported", "decompress it with compressed-tensors")
    _check_transforms(settings.get("transform_config"))
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        raise CheckpointError("config_groups", "is not a mapping of groups", "fix the file")
    schemes = [_targeted(name, group, settings.get("format")) for name, group in groups.items()]
    if len(schemes) == 1:
        return [schemes[0].scheme]
    # the first scheme that applies is used; a class matches every module, so it must come last
    return sorted(schemes, key=lambda scheme: all("." not in target for target in scheme.targets))


def _check_transforms(section: Any) -> None:
    # transforms of weights are folded into them; transforms of activations would have to be computed
    groups = section.get("config_groups") if isinstance(section, dict) else section
    if groups and not isinstance(groups, dict):
        raise CheckpointError("transform_config", f"{section!r} is not a mapping", "fix the file")
    for name, group in (groups or {}).items():
        uses = group.get("apply") if isinstance(group, dict) else None
        if not isinstance(uses, list) or not all(isinstance(use, dict) for use in uses):
            raise CheckpointError(f"transform_config: {name}", "does not list where it applies", "fix the file")
        if open_ones := sorted({str(use.get("location")) for use in uses} - IN_THE_WEIGHTS):
            cause = f"transforms {open_ones[0]} at run time, which is not supported"
            raise CheckpointError(f"transform_config: {name}", cause, "use a checkpoint without it")


def _targeted(name: str, group: Mapping[str, Any], usual: Any) -> Targeted:
    field, form = f"config_groups: {name}", group.get("format") or usual
    weights, targets = group.get("weights"), group.get("targets")
    if not isinstance(form, str) or form not in FORMATS:
        raise CheckpointError(field, f"format {form!r} is not supported", f"use one of {', '.join(FORMATS)}")
    if not isinstance(weights, dict) or not isinstance(targets, list):
        raise CheckpointError(field, "has no weights or targets", "fix the file")
    for target in map(str, targets):
        try:
            re.compile(target.removeprefix("re:"))
        except re.error as error:
            raise CheckpointError(
                f"{field}: targets", f"{target!r} is not a pattern: {error}", "fix the file"
            ) from None
    try:
        return Targeted(FORMATS[form](weights), tuple(map(str, targets)))
    except CheckpointError as error:
        raise error.at(field) from None
