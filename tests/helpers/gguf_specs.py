"""Small models of the types that llama.cpp computes, as read from small models of transformers (gguf_specs.json)."""

import json
from pathlib import Path

from archetype import spec
from archetype.models.file import parse

_FILE = Path(__file__).with_suffix(".json")
SPECS: dict[str, spec.ModelSpec] = {name: parse(value) for name, value in json.loads(_FILE.read_text()).items()}
