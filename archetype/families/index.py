"""Index of all presets without specifications (`presets.json`): family, kind, size and source.

`python -m archetype.families.index` writes the file. A test fails while the file is out of date.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("presets.json")


class PresetFacts(NamedTuple):
    family: str
    kind: str
    parameters: int
    source: str


@cache
def preset_facts() -> dict[str, PresetFacts]:
    # from the file, so that no family is imported
    return {name: PresetFacts(*facts) for name, facts in json.loads(FILE.read_bytes()).items()}


def count_presets() -> dict[str, PresetFacts]:
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
