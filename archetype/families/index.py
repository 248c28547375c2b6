"""The index of all presets without their specifications: family, kind, size and source, in `presets.json`.

The file is written by `python -m archetype.families.index`; a test fails while it differs from the presets.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("presets.json")


class PresetFacts(NamedTuple):
    """One preset in the index."""

    family: str
    kind: str
    parameters: int
    source: str


@cache
def preset_facts() -> dict[str, PresetFacts]:
    """Return the facts of every preset by name, from the file."""
    return {name: PresetFacts(*facts) for name, facts in json.loads(FILE.read_bytes()).items()}


def count_presets() -> dict[str, PresetFacts]:
    """Compute the same from the presets themselves."""
    from archetype.estimate.report import total_parameters
    from archetype.families.registry import presets

    facts = {}
    for name, (family, preset) in presets().items():
        spec = preset.make()
        facts[name] = PresetFacts(family.name, spec.kind, total_parameters(spec), preset.source)
    return facts


if __name__ == "__main__":
    rows = (f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in count_presets().items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
