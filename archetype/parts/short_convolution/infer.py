"""Infer a short convolution of an unregistered family from names and shapes of its tensors."""

from archetype.parts.short_convolution.spec import ShortConvolution
from archetype.roles.checkpoint import CheckpointMixer, MixerReader, NameTable
from archetype.spec.registry import provides

NAMES: NameTable = tuple((rf"conv\.{name}", name) for name in ("in_proj", "conv", "out_proj"))


def read(tensors: CheckpointMixer) -> ShortConvolution:
    tensors.settle("in_proj_order", ("b_c_x",), "no file states the order of the parts of in_proj")
    return ShortConvolution(conv_kernel=tensors.shape("conv.weight")[2], bias="in_proj.bias" in tensors.shapes)


provides("infer", ShortConvolution)(MixerReader(NAMES, read, sign=(r"conv\.conv\.weight", 3)))
