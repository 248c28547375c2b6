"""Model families, one file each: presets and, for families with published weights, the format. Imports no torch.

Names are imported on first use, so that listing presets does not load specifications.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archetype.families.family import Family, InferenceReport, Preset
    from archetype.families.format import Format
    from archetype.families.index import PresetFacts, preset_facts
    from archetype.families.registry import FAMILIES, family_for, family_of, preset, presets, published, register_family

_MODULES = {
    "family": ("Family", "InferenceReport", "Preset"),
    "format": ("Format",),
    "index": ("PresetFacts", "preset_facts"),
    "registry": ("FAMILIES", "family_for", "family_of", "preset", "presets", "published", "register_family"),
}
__all__ = [
    "FAMILIES",
    "Family",
    "Format",
    "InferenceReport",
    "Preset",
    "PresetFacts",
    "family_for",
    "family_of",
    "preset",
    "preset_facts",
    "presets",
    "published",
    "register_family",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"archetype.families.{module}"), name)
    raise AttributeError(f"module 'archetype.families' has no attribute {name!r}")
