"""Layers: imports point one way, without circles, and what only reads specifications never loads torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import archetype
import archetype.cost
import archetype.estimate.report
import archetype.spec

PACKAGE = Path(archetype.__file__).parent
MODULES = {
    ".".join(("archetype", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
# Each may import what stands before it, and nothing else but itself.
LAYERS = (
    "errors", "distribution", "legend", "dtypes", "table", "chart", "confined", "io", "machine", "spec", "roles",
    "native", "cost", "nn", "weights", "parts", "models", "settings", "estimate", "families", "diagram", "gallery",
    "tokenizers", "convert", "runs", "data", "generate", "inspection", "surgery", "training", "evaluation",
    "built_costs", "api", "hf", "checking", "studies", "apps", "apps.bench", "apps.serve", "apps.cli",
)  # fmt: skip
CALL = "try:\n    main()\nexcept SystemExit:\n    pass"
WITHOUT_TORCH = (
    "errors", "distribution", "legend", "dtypes", "table", "chart", "spec", "roles", "cost", "settings", "estimate",
    "families", "diagram", "gallery",
)  # fmt: skip
FILES_WITHOUT_TORCH = ("__init__", "spec", "cost", "rule", "diagram", "infer", "curves")  # of parts and models
ROOTS = ("archetype", "archetype.__main__", "archetype.extend")  # the front doors, which re-export
FACADES = ("archetype.cost", "archetype.spec")  # where users find names of a higher layer, imported on demand


def layer(module: str) -> str:
    """archetype.parts.norm.module -> nn; each of the programs is a layer of its own"""
    place = module.split(".")[1:]
    return ".".join(place[:2]) if place[:1] == ["apps"] else "".join(place[:1])


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def imported(module: str) -> Iterator[str]:
    """Everything that a module imports, at its top or inside a function, as a full dotted name."""
    file = MODULES[module]
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join(above[: len(above) - node.level + 1] + [base] * bool(base))
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


def reached(module: str) -> set[str]:
    """What a module imports, and what it reaches as an attribute such as torch.distributed."""
    return {*imported(module), *(dotted(node) for node in nodes(module) if isinstance(node, ast.Attribute))}


def dotted(node: ast.AST) -> str:
    """A name with its attributes, such as torch.distributed; empty for what begins otherwise."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def uses(module: str, name: str) -> bool:
    return any(f"{other}.".startswith(f"{name}.") for other in reached(module))


def layers_imported(module: str) -> set[str]:
    """Anyone may ask the package for its version."""
    return {layer(name) for name in reached(module) if name.startswith("archetype.")} - {"__version__"}


def test_the_walk_sees_every_way_to_import() -> None:
    names = set(imported("archetype.parts.attention.projections"))
    assert {"archetype.parts.pattern.scores.ScoreFunction", "archetype.nn.context.ForwardContext", "torch"} < names
    assert {"errors", "models", "native", "nn"} == layers_imported("archetype.models.build")
    assert "archetype.api.functions.load" in set(imported("archetype"))
    assert uses("archetype.parts.norm.module", "torch")
    assert not uses("archetype.parts.norm.spec", "torch")


def test_every_module_has_a_layer() -> None:
    assert {layer(module) for module in MODULES if module not in ROOTS} == set(LAYERS)


def test_imports_point_one_way() -> None:
    offenders = {
        module: sorted(above)
        for module in MODULES
        if module not in (*ROOTS, *FACADES)
        if (above := layers_imported(module) - set(LAYERS[: LAYERS.index(layer(module)) + 1]))
    }
    assert offenders == {}


def test_the_claims_use_the_package_and_not_the_other_way_round() -> None:
    assert not [module for module in MODULES if any(f"{name}.".startswith("claims.") for name in imported(module))]


def test_a_type_checker_finds_every_public_name_of_specifications() -> None:
    modules = {name.removesuffix(".*") for name in imported("archetype.spec") if name.endswith(".*")}
    assert modules == set(archetype.spec._public().values())


def test_facades_are_for_users() -> None:
    names = {f"archetype.cost.{name}" for name in ("CostReport", "Row", "cost_report", "total_parameters")}
    assert not {module for module in MODULES if names & set(imported(module))}
    assert archetype.cost.cost_report is archetype.estimate.report.cost_report


@pytest.mark.parametrize("name", ["torch", "torch.distributed", "transformers"])
def test_only_those_who_need_it_import(name: str) -> None:
    allowed = {
        "torch": lambda module: not is_without_torch(module),
        "torch.distributed": lambda module: module.startswith("archetype.training.parallel."),
        "transformers": lambda module: module == "archetype.convert.reference" or layer(module) == "hf",
    }[name]
    assert [module for module in MODULES if uses(module, name) and not allowed(module)] == []


def is_without_torch(module: str) -> bool:
    is_file_of_parts = layer(module) in ("parts", "models") and MODULES[module].stem in FILES_WITHOUT_TORCH
    return layer(module) in WITHOUT_TORCH or is_file_of_parts


def folder(module: str) -> str:
    """archetype.parts.attention.core -> parts.attention; a file of no folder is one of its own"""
    return ".".join(module.split(".")[1:3])


def test_no_circle_of_folders_of_parts_and_models() -> None:
    """A part's folder may use others, and none that uses it."""
    uses_of: dict[str, set[str]] = {}
    for module in MODULES:
        if layer(module) in ("parts", "models"):
            others = {folder(name) for name in imported(module) if layer(name) in ("parts", "models")}
            uses_of.setdefault(folder(module), set()).update(others - {folder(module)})
    assert len(uses_of) > 20
    with_others = TopologicalSorter(uses_of)
    with_others.prepare()  # raises where there is a circle


def loaded_after(program: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_specifications_and_costs_never_load_torch() -> None:
    loaded = loaded_after(
        "import archetype, archetype.spec, archetype.cost, archetype.families\n"
        "preset = archetype.families.preset('llama-3.1-405b')\n"
        "archetype.cost.cost_report(preset).to_json()\n"
        "archetype.spec.parse(archetype.spec.assign(preset, ['num_layers=3']).dump())\n"
        "archetype.spec.json_schema()\n"
        "archetype.families.family_for(preset).format.config_for(preset)"
    )
    assert "archetype.parts.attention.cost" in loaded
    assert not {"torch", "numpy", "transformers"} & loaded


def test_the_list_of_presets_and_the_help_load_no_specifications() -> None:
    for arguments in (["list"], ["--help"]):
        loaded = loaded_after(
            f"import sys; sys.argv[1:] = {arguments}\nfrom archetype.apps.cli.main import main\n" + CALL
        )
        assert "archetype.apps.cli.main" in loaded
        assert not {"archetype.spec", "archetype.cost", "rich", "jsonschema", "numpy"} & loaded


def test_a_server_starts_without_specifications_and_its_page_without_torch() -> None:
    loaded = loaded_after(
        "from archetype.apps.cli import serve\n"
        "from archetype.apps.serve import server\n"
        "from archetype.apps.serve.app import App\n"
        "from archetype.apps.serve.models import ModelOptions, Models\n"
        "from archetype.apps.serve.example import example\n"
        "App(Models([], ModelOptions(open=print)))\n"
        "App(Models([example()], ModelOptions(open=print)))\n"
    )
    assert "archetype.apps.serve.app" in loaded
    assert not {"archetype.spec", "archetype.cost", "pydantic", "torch"} & loaded
    loaded = loaded_after(
        "from archetype.apps.serve import routes\n"
        "from archetype.apps.serve.app import App\n"
        "from archetype.apps.serve.models import ModelOptions, Models\n"
        "from archetype.apps.serve.positions import positions\n"
        "from archetype.apps.serve.specs import EvaluateRequest, LengthRequest, evaluated\n"
        "app = App(Models([], ModelOptions(open=print)))\n"
        "routes.load(with_models=False)\n"
        "assert all(route.is_loaded != route.uses_model for route in routes.ROUTES)\n"
        "assert evaluated(app.models, EvaluateRequest(preset='llama-tiny'))['ok']\n"
        "from archetype.apps.serve.example import example\n"
        "served = Models([example()], ModelOptions(open=print))\n"
        "assert evaluated(served, EvaluateRequest(model='example'))['ok']\n"
        "assert positions(app.models, LengthRequest(preset='llama-tiny'))['ok']\n"
    )
    assert "archetype.apps.serve.app" in loaded
    assert not {"torch", "numpy", "matplotlib", "archetype.models.build", "archetype.generate"} & loaded
