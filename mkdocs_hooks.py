"""Publish the JSON Schemas of our files with the documentation, at the addresses of `distribution.schema_url`."""

import json
from typing import Any

from archetype import spec
from archetype.studies import experiment
from archetype.training import recipe

SCHEMAS = {"specification": spec.json_schema, "recipe": recipe.json_schema, "experiment": experiment.json_schema}


def on_files(files: Any, *, config: Any) -> Any:
    """Add each schema to the files of the site; mkdocs calls this before it builds.

    Args:
        files: of the site, as `mkdocs.structure.files.Files`.
        config: of mkdocs.yml.
    """
    from mkdocs.structure.files import File

    for kind, schema in SCHEMAS.items():
        files.append(File.generated(config, f"schemas/{kind}.json", content=json.dumps(schema(), indent=1)))
    return files
