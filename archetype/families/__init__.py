"""Families of models, one file each: presets and, where weights are published, their format. No torch."""

from archetype.families.family import Family, InferenceReport, Preset
from archetype.families.format import Format
from archetype.families.registry import FAMILIES, PUBLISHED, family_for, family_of, preset, presets

__all__ = [
    "FAMILIES",
    "PUBLISHED",
    "Family",
    "Format",
    "InferenceReport",
    "Preset",
    "family_for",
    "family_of",
    "preset",
    "presets",
]
