"""HOW each part computes: the same file names as in `spec`, each with its module."""

from importlib import import_module

from archetype.spec.part import PART_FILES

for name in PART_FILES:
    import_module(f"{__name__}.{name}")
