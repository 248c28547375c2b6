"""HOW each part computes: the same file names as in `spec`, each with its module."""

from importlib import import_module

from archetype.spec.part import part_files

for name in part_files():
    import_module(f"{__name__}.{name}")
