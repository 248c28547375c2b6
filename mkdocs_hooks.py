"""Publish with the documentation what lies elsewhere: JSON Schemas of our files, reports of studies, and the course.

A schema lies under `schemas/`, a report under `studies/`, a notebook under `course/`. Pages link to notebooks as they
lie in the repository.
"""

import json
from pathlib import Path
from typing import Any

from archetype import spec
from archetype.studies import experiment
from archetype.training import recipe

SCHEMAS = {"specification": spec.json_schema, "recipe": recipe.json_schema, "experiment": experiment.json_schema}
ROOT = Path(__file__).parent
REPORTS = ROOT / "claims" / "reports"


def on_files(files: Any, *, config: Any) -> Any:
    """Add schemas, reports and notebooks to the files of the site; mkdocs calls this before it builds.

    Args:
        files: of the site, as `mkdocs.structure.files.Files`.
        config: of mkdocs.yml.
    """
    from mkdocs.structure.files import File

    for kind, schema in SCHEMAS.items():
        files.append(File.generated(config, f"schemas/{kind}.json", content=json.dumps(schema(), indent=1)))
    others = {"studies": sorted(REPORTS.iterdir()), "course": sorted((ROOT / "course").glob("*.ipynb"))}
    for folder, sources in others.items():
        for source in sources:
            files.append(File.generated(config, f"{folder}/{source.name}", abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have links to notebooks lead to where the site has them; mkdocs calls this for each page."""
    return markdown.replace("](../course/", "](course/")
