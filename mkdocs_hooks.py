"""Publish with the documentation what lies elsewhere: the JSON Schemas of our files, and the reports of studies.

A schema has the address of `distribution.schema_url`, a report that of its name under `studies/`.
"""

import json
from pathlib import Path
from typing import Any

from archetype import spec
from archetype.studies import experiment
from archetype.training import recipe

SCHEMAS = {"specification": spec.json_schema, "recipe": recipe.json_schema, "experiment": experiment.json_schema}
REPORTS = Path(__file__).parent / "claims" / "reports"


def on_files(files: Any, *, config: Any) -> Any:
    """Add schemas and reports to the files of the site; mkdocs calls this before it builds.

    Args:
        files: of the site, as `mkdocs.structure.files.Files`.
        config: of mkdocs.yml.
    """
    from mkdocs.structure.files import File

    for kind, schema in SCHEMAS.items():
        files.append(File.generated(config, f"schemas/{kind}.json", content=json.dumps(schema(), indent=1)))
    for report in sorted(REPORTS.iterdir()):
        files.append(File.generated(config, f"studies/{report.name}", abs_src_path=str(report)))
    return files
