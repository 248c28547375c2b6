"""Specifications: frozen data that describe an architecture, without torch.

This folder defines what all nodes of a specification have in common. The kinds of parts and models are declared in
their own folders, and can all be imported from here: `from archetype.spec import Attention, Decoder, parse`.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers only; a test compares the list with the folders
    from archetype.estimate.width import *
    from archetype.models.block.spec import *
    from archetype.models.decoder.spec import *
    from archetype.models.encoder.spec import *
    from archetype.models.encoder_decoder.spec import *
    from archetype.models.file import *
    from archetype.models.further_tokens.spec import *
    from archetype.models.initialization_spec import *
    from archetype.models.megabyte.spec import *
    from archetype.models.ngram.spec import *
    from archetype.models.spec import *
    from archetype.models.stack.layers import *
    from archetype.models.stack.spec import *
    from archetype.models.vision.spec import *
    from archetype.parts.activation.spec import *
    from archetype.parts.adapter.spec import *
    from archetype.parts.altup.spec import *
    from archetype.parts.attention.spec import *
    from archetype.parts.block_index.spec import *
    from archetype.parts.channel_mixing.spec import *
    from archetype.parts.compressed_attention.spec import *
    from archetype.parts.convolutions.spec import *
    from archetype.parts.depth_attention.spec import *
    from archetype.parts.disentangled_attention.spec import *
    from archetype.parts.embedding.spec import *
    from archetype.parts.experts.spec import *
    from archetype.parts.feedforward.spec import *
    from archetype.parts.gain.spec import *
    from archetype.parts.gated_delta_net.spec import *
    from archetype.parts.head.spec import *
    from archetype.parts.latent_attention.spec import *
    from archetype.parts.lightning_index.spec import *
    from archetype.parts.linear_attention.spec import *
    from archetype.parts.mamba.spec import *
    from archetype.parts.mamba2.spec import *
    from archetype.parts.mamba3.spec import *
    from archetype.parts.mlstm.spec import *
    from archetype.parts.native_sparse_attention.spec import *
    from archetype.parts.ngram.spec import *
    from archetype.parts.norm.spec import *
    from archetype.parts.pattern.spec import *
    from archetype.parts.per_layer_input.spec import *
    from archetype.parts.pool_index.spec import *
    from archetype.parts.position.spec import *
    from archetype.parts.recurrent.spec import *
    from archetype.parts.residual_sums.spec import *
    from archetype.parts.rg_lru.spec import *
    from archetype.parts.router.spec import *
    from archetype.parts.rwkv4.spec import *
    from archetype.parts.rwkv7.spec import *
    from archetype.parts.sentence_head.spec import *
    from archetype.parts.short_convolution.spec import *
    from archetype.parts.streams.spec import *
    from archetype.parts.together.spec import *
    from archetype.roles.activation import *
    from archetype.roles.embedding import *
    from archetype.roles.feedforward import *
    from archetype.roles.head import *
    from archetype.roles.mixer import *
    from archetype.roles.norm import *
    from archetype.roles.pattern import *
    from archetype.roles.position import *
    from archetype.roles.residual import *
    from archetype.roles.router import *
    from archetype.roles.selection import *
    from archetype.roles.wiring import *
    from archetype.spec.base import *
    from archetype.spec.edit import *
    from archetype.spec.kinds import *
    from archetype.spec.repeats import *
    from archetype.spec.scaling import *
    from archetype.spec.serialize import *
    from archetype.spec.sizes import *
    from archetype.spec.steps import *


@cache
def _public() -> dict[str, str]:
    from archetype.spec.registry import load_kinds

    folders = (f"{folder}.spec" for folder in load_kinds())
    role_modules = (f"{above}.{info.name}" for above in (__name__, "archetype.roles") for info in _modules_in(above))
    others = ("models.spec", "models.file", "models.stack.layers", "models.initialization_spec")
    modules = [*role_modules, *folders, *(f"archetype.{name}" for name in others), "archetype.estimate.width"]
    return {name: module for module in modules for name in _names_of(import_module(module))}


def _names_of(module: Any) -> Iterable[str]:
    # those that it lists, or the specifications that it declares
    from archetype.spec.base import Spec

    if hasattr(module, "__all__"):
        return module.__all__
    own = {name: cls for name, cls in vars(module).items() if getattr(cls, "__module__", "") == module.__name__}
    return [name for name, cls in own.items() if name[0] != "_" and isinstance(cls, type) and issubclass(cls, Spec)]


def _modules_in(package: str) -> Any:
    from pkgutil import iter_modules

    return iter_modules(import_module(package).__path__)


if not TYPE_CHECKING:  # a type checker would otherwise accept any attribute

    def __getattr__(name: str) -> Any:
        if name.startswith("__") or name not in _public():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_public()[name]), name)


def __dir__() -> list[str]:
    return sorted(_public())
