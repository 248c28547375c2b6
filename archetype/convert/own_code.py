"""Module in an exported folder through which transformers finds the classes of `archetype.hf` (trust_remote_code)."""

from pathlib import Path

from archetype import __version__
from archetype.distribution import installed_from
from archetype.io import atomic

FILE = "modeling_archetype.py"
# The Auto class that builds each class.
AUTO = {
    "ArchetypeForCausalLM": "AutoModelForCausalLM",
    "ArchetypeForSeq2SeqLM": "AutoModelForSeq2SeqLM",
    "ArchetypeForMaskedLM": "AutoModelForMaskedLM",
    "ArchetypeForSequenceClassification": "AutoModelForSequenceClassification",
    "ArchetypeForTokenClassification": "AutoModelForTokenClassification",
    "ArchetypeForImageClassification": "AutoModelForImageClassification",
    "ArchetypeModel": "AutoModel",
}
CODE = """# This model needs the Python package `archetype`; version {version}, installed from {source}, wrote it.
from archetype.hf import {names}

__all__ = [{quoted}]
"""


def write_own_code(folder: Path, architecture: str) -> dict[str, str]:
    """Write the module that imports the classes. Return `auto_map` for config.json."""
    names = sorted({"ArchetypeConfig", "ArchetypeModel", architecture})
    quoted = ", ".join(f'"{name}"' for name in names)
    code = CODE.format(version=__version__, source=installed_from(), names=", ".join(names), quoted=quoted)
    atomic.write_bytes(folder / FILE, code.encode())
    module = FILE.removesuffix(".py")
    classes = {"AutoConfig": "ArchetypeConfig"} | {AUTO[name]: name for name in ("ArchetypeModel", architecture)}
    return {auto: f"{module}.{name}" for auto, name in classes.items()}
