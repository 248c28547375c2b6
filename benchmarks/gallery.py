"""What the published files of the gallery's models give: archetype/gallery/read.json and archetype/gallery/specs.

    python -m benchmarks.gallery [SHARED]

Reads the pinned configurations and headers in SHARED/published (by default ../shared/data), and which types agree with
transformers from docs/zoo.md. Configurations that are not pinned are those of tests/helpers/gallery_values.json. A
model whose specification `models.csv` makes from another one gets no file.
"""

import csv
import hashlib
import json
import re
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import transformers

from archetype.gallery.entries import READ, Entry, Evidence, entries
from archetype.gallery.facts import SPECS
from archetype.io.yaml import mapping_to_yaml, with_schema_line
from archetype.models.spec import ModelSpec
from tests.conftest import SHARED
from tests.helpers.gallery import PINNED, PROVEN, VALUES, find, with_values
from tests.helpers.published_models import DATA, PublishedModel, published_models, read_published, spec_of
from tests.helpers.zoo import page_of, rows_of


def evidence(
    entry: Entry, shared: Path, models: dict[str, PublishedModel], zoo: dict[str, tuple[str, str]]
) -> Evidence:
    """What is known of one model, from its pinned configuration or from its type."""
    pinned = {}
    config, numbers, source, places = {}, None, "", None
    if (model := config_of(entry.id, models)) is not None:
        one = read_published(shared, model)
        pinned[model.file] = (one.status, one.said)
        config = provenance(shared, model) if entry.id in PINNED else VALUES[entry.id]["config"]
        if one.differs is not None and one.total is not None:
            numbers, places = one.total + one.differs, True
            source = "header" if one.beside[0].startswith("header") else f"transformers {transformers.__version__}"
    outcome = find(entry, pinned, zoo)
    agrees = entry.type in PROVEN or zoo.get(entry.type, ("", ""))[0] == "agrees"
    version = transformers.__version__ if agrees else ""
    return Evidence(config, numbers, source, places, version, "" if outcome.is_read else missing(outcome.said))


def config_of(name: str, models: dict[str, PublishedModel]) -> PublishedModel | None:
    """The configuration by which a model of the gallery is read; None if none is known."""
    return models[f"{PINNED[name]}.json"] if name in PINNED else with_values().get(name)


def missing(said: str) -> str:
    """What is missing, without the place in the file and without the remedy."""
    if unknown := re.match(r"(\S+): belongs to an unknown part", said):
        return f"the part with the tensor {unknown[1]}, which is not known"
    return re.sub(r", which is not supported.*", "", re.sub(r"^.*?: needs ", "", said))


def provenance(shared: Path, model: PublishedModel) -> dict[str, str]:
    """Where a pinned configuration is from, and its hash."""
    file = shared / DATA / "configs" / model.file
    with (shared / DATA / "MANIFEST.csv").open(encoding="utf-8") as manifest:
        row = next(row for row in csv.DictReader(manifest) if row["file"] == f"configs/{model.file}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"model": row["model"], "repository": row["source_repository"], "path": row["path"],
            "commit": row["commit"], "sha256": digest}  # fmt: skip


def text_of(spec: ModelSpec) -> str:
    """The YAML of a specification in which equal layers, and equal parts of layers, are written once.

    The pattern of the layers is then seen, as in a sequence of *mamba2, *experts and *attention.
    """
    data: dict[str, Any] = spec.dump()
    anchors: dict[str, dict[str, Any]] = {}
    groups = data["layers"]
    layers = [block for group in groups for block in group.get("blocks") or [group["block"]]]
    layers = once(layers, [_kind(block) for block in layers], anchors)
    for field in ("mixer", "feedforward"):
        blocks = [block for block in {id(block): block for block in layers}.values() if len(block.get(field, {})) > 2]
        parts = [block[field] for block in blocks]
        for block, part in zip(blocks, once(parts, [f"{p['kind']}-{field}" for p in parts], anchors), strict=True):
            block[field] = part
    blocks = iter(layers)
    for group in groups:
        if "blocks" in group:
            group["blocks"] = [next(blocks) for _ in group["blocks"]]
        else:
            group["block"] = next(blocks)
    return mapping_to_yaml(data, anchors)


def once(parts: list[dict[str, Any]], names: list[str], anchors: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace equal parts by one object, and add those that occur again to `anchors`."""
    unlike: list[dict[str, Any]] = []
    result = []
    for part, name in zip(parts, names, strict=True):
        same = next((other for other in unlike if other == part), None)
        if same is None:
            unlike.append(same := part)
        elif not any(same is other for other in anchors.values()):
            numbered = (name, *(f"{name}-{number}" for number in range(2, 100)))
            anchors[next(each for each in numbered if each not in anchors)] = same
        result.append(same)
    return result


def _kind(block: dict[str, Any]) -> str:
    kind = block["mixer"]["kind"]
    return str(block["feedforward"]["kind"] if kind == "none" else kind)


def main() -> None:
    """Write both, and print what is missing."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")
    shared = Path(sys.argv[1]) if sys.argv[1:] else SHARED / "data"
    models = {model.file: model for model in published_models(shared)}
    zoo = rows_of(page_of("causal").read_text(encoding="utf-8"))
    readings = {}
    SPECS.mkdir(exist_ok=True)
    for entry in entries().values():
        one = readings[entry.id] = evidence(entry, shared, models, zoo)
        file = SPECS / f"{entry.id}.yaml"
        config = config_of(entry.id, models)
        if config is not None and not one.needs and not entry.spec:
            spec = spec_of(shared, config)
            file.write_text(with_schema_line(text_of(spec), "specification"), encoding="utf-8")
        elif file.is_file():
            file.unlink()
    rows = (
        f" {json.dumps(name)}: {json.dumps({k: v for k, v in asdict(one).items() if v not in ({}, None, '')})}"
        for name, one in readings.items()
    )
    READ.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(sum(bool(one.needs) for one in readings.values()), "cannot be said", file=sys.stderr)


if __name__ == "__main__":
    main()
