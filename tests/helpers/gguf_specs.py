"""Small models of the types that llama.cpp computes (gguf_specs.json).

Most are as read from small models of transformers; some, which it has not, are written from llama.cpp's sources.
"""

import json
from pathlib import Path

from archetype import spec
from archetype.families.family import Family
from archetype.models.file import parse

_FILE = Path(__file__).with_suffix(".json")
SPECS: dict[str, spec.ModelSpec] = {name: parse(value) for name, value in json.loads(_FILE.read_text()).items()}


def type_of(name: str) -> str:
    """The model type, before what a name says about its form."""
    return name.split()[0]


def family_of(name: str) -> Family:
    return Family(type_of(name), {})
