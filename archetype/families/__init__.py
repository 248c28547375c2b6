"""Published families, one file each: presets, configuration and weight rules. No torch."""

from archetype.families.family import Family, Preset
from archetype.families.registry import FAMILIES, family_for, family_of, preset, presets

__all__ = ["FAMILIES", "Family", "Preset", "family_for", "family_of", "preset", "presets"]
