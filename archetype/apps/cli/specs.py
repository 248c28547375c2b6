"""The commands `list`, `show`, `diff`, `set` and `schema`, which do not load torch."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archetype.apps.cli.options import Json, OptionalOutput, Spec, complete_presets
from archetype.apps.cli.output import print_json

if TYPE_CHECKING:
    from archetype.models.spec import ModelSpec

NEEDS = {"solve": ("match",)}
EXCLUDES = {"explain": ("full",)}


def list_(as_json: Json = False) -> None:
    """List the presets and the published models, with sizes and sources."""
    from archetype.families.index import preset_facts
    from archetype.gallery.facts import facts, has_specification

    published = [
        {"name": row["id"], "title": row["name"], "type": row["type"], "date": row["date"], "parameters": row["total"],
         "active": row["active"], "source": row["repository"] or row["report"], "report": row["report"],
         "specification": has_specification(row)}
        for row in facts()
    ]  # fmt: skip
    rows: list[dict[str, Any]] = [{"name": name} | facts._asdict() for name, facts in preset_facts().items()]
    if as_json:
        print_json({"presets": rows, "published": published})
        return
    from archetype.table import Table

    cells = [[row["name"], row["family"], row["kind"], row["source"], f"{row['parameters']:,}"] for row in rows]
    print(Table(("preset", "family", "kind", "source", "parameters"), cells, text_columns=4))
    cells = [[*(row[key] for key in ("name", "type", "date", "source", "parameters", "active")),
              "yes" if row["specification"] else "no"] for row in published]  # fmt: skip
    heads = ("published model", "type", "date", "source", "parameters", "active", "specification")
    print(f"\n{Table(heads, cells, text_columns=4)}")
    print("\nEach of these with a specification can be named like a preset, also as NAME-tiny.")


def show(
    source: Spec,
    full: Annotated[bool, typer.Option("--full", help="Include default values.")] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print how a model folder was interpreted: recognized, assumed and ignored keys."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print a specification as YAML."""
    from archetype.convert.source import open_spec
    from archetype.io.yaml import mapping_to_yaml, with_schema_line

    if explain:
        _explain(Path(source), as_json)
        return
    data = open_spec(source).dump(full=full)
    if as_json:
        print_json(data)
    else:
        # the text ends in a newline already
        print(with_schema_line(mapping_to_yaml(data), "specification"), end="")


def _explain(folder: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from archetype.convert.source import find_config, read_config
    from archetype.errors import SpecError

    if (config := find_config(folder)) is None:
        raise SpecError(str(folder), "is not a model folder with a config.json", "remove --explain")
    family, _ = read_config(config, warn=False)
    if as_json:
        print_json({"family": family.name, "reading": family.reading and asdict(family.reading)})
    elif family.reading is None:
        print(f"{family.name} is a registered family: each key is used, or known to have no effect")
    else:
        print(family.reading.table(family.name))


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A specification.", autocompletion=complete_presets)],
    second: Annotated[str, typer.Argument(metavar="B", help="Another specification.", autocompletion=complete_presets)],
    as_set: Annotated[
        bool, typer.Option("--set", help="Print the assignments with which `archetype set A` makes B.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print every field in which two specifications differ."""
    from archetype.convert.source import open_spec
    from archetype.spec.edit import differences

    if as_set:
        from archetype.spec.steps import assignments

        lines = assignments(open_spec(first), open_spec(second))
        print_json({"assignments": lines}) if as_json else print("\n".join(lines) or "no difference")
        return
    changes = differences(open_spec(first), open_spec(second)) + _recipe_differences(Path(first), Path(second))
    if as_json:
        print_json({"differences": [{"path": path, "a": a, "b": b} for path, a, b in changes]})
        return
    for path, a, b in changes:
        print(f"{path}: {a} -> {b}")
    if not changes:
        print("no difference")


def _recipe_differences(first: Path, second: Path) -> list[tuple[str, Any, Any]]:
    # only of two runs; their models are compared as specifications
    if not all((folder / "recipe.yaml").is_file() for folder in (first, second)):
        return []
    from archetype.spec.edit import differences
    from archetype.training.recipe import read_recipe

    a, b = (read_recipe(folder / "recipe.yaml").replace(spec="") for folder in (first, second))
    return [(f"recipe.{path}", *values) for path, *values in differences(a, b)]


def set_(
    source: Spec,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH=VALUE...", help="Changes, such as num_layers=6 or layers[::4].mixer.pattern=full."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="MEASURE=RATIO,...",
            help="Resize proportionally: width, depth, vocab or context, by 1/8, 2x or to 512.",
        ),
    ] = None,
    match: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="B MEASURE",
            help="Adjust one size until the parameters, active parameters, FLOPs or state match another "
            "specification or an amount such as 3M.",
        ),
    ] = None,
    solve: Annotated[
        str | None, typer.Option(metavar="PATH", help="Field that --match adjusts.  [default: a suitable size]")
    ] = None,
    to: OptionalOutput = None,
    as_json: Json = False,
) -> None:
    """Change a specification and print the validated result."""
    from archetype.convert.source import open_spec
    from archetype.errors import Notice, SpecError
    from archetype.io.yaml import with_schema_line
    from archetype.spec.edit import assign
    from archetype.spec.scaling import scaled, unusual_ratios
    from archetype.spec.serialize import to_json, to_yaml

    if not assignments and match is None and scale is None:
        raise SpecError("set", "no change was passed", "pass PATH=VALUE, --scale or --match B MEASURE")
    original = open_spec(source)
    spec = assign(scaled(original, scale.split(",") if scale else []), assignments or [])
    for sentence in dict.fromkeys(unusual_ratios(original, spec)):
        warnings.warn(f"{sentence}; --scale width=RATIO keeps proportions", Notice, stacklevel=1)
    if match is not None:
        from archetype.estimate.match import match as solved
        from archetype.estimate.match import read_amount

        # an existing file is a specification, even one named 3M
        budget = None if Path(match[0]).exists() else read_amount(*match)
        result = solved(spec, open_spec(match[0]) if budget is None else budget, match[1], solve)
        spec = result.spec
        change = f"{result.before} -> {result.after}"
        if result.before == result.after:
            change = f"{result.before} unchanged (no other value is closer)"
        whose = f"{match[0]} has" if budget is None else "the budget is"
        print(
            f"{result.path}: {change}; {match[1]} {result.amount:,}, {whose} {result.target:,}",
            file=sys.stderr,
        )
    if as_json or (to is not None and to.suffix == ".json"):
        text = to_json(spec)
    else:
        text = _edited_file(source, original, spec) or with_schema_line(to_yaml(spec), "specification")
    if to is None:
        print(text, end="")
    else:
        from archetype.io import atomic

        atomic.write_bytes(to, text.encode())


def _edited_file(source: str, before: "ModelSpec", after: "ModelSpec") -> str | None:
    # a user's YAML file keeps its comments and order, apart from the changed lines
    file = Path(source)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return None
    from archetype.errors import Notice
    from archetype.models.file import edited

    written = file.read_bytes().decode()  # keep the line endings
    text = edited(written, before, after)
    # a `#` inside a string counts on both sides
    if (text or "").count("#") < written.count("#"):
        warnings.warn(f"{file}: comments on replaced values are lost", Notice, stacklevel=1)
    return text


def schema(
    recipe: Annotated[bool, typer.Option("--recipe", help="Print the schema of training recipes instead.")] = False,
    to: OptionalOutput = None,
) -> None:
    """Print the JSON Schema of specification files, for editors, or write it to a file."""
    if recipe:
        from archetype.training.recipe import json_schema
    else:
        from archetype.models.file import json_schema
    print_json(json_schema(), to)
