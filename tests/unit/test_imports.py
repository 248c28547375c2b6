"""The house has storeys: imports point down, and what only reads specifications never loads torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import archetype

PACKAGE = Path(archetype.__file__).parent
MODULES = {
    ".".join(("archetype", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
# A room may import rooms of lower storeys, and no other of its own.
STOREYS = (
    ("errors",),
    ("spec",),
    ("cost", "parts", "checkpoint.rules", "checkpoint.durable", "checkpoint.files", "checkpoint.hub"),
    ("families",),
    ("model",),
    ("data",),
    ("checkpoint",),
    ("generate", "train"),
    ("language_model",),
    ("folders",),
    ("faces", "parity"),
    ("cli",),
)
STOREY = {room: storey for storey, rooms in enumerate(STOREYS) for room in rooms}
# Where that is not narrow enough.
ONLY = {
    "spec": {"errors"},
    "cost": {"errors", "spec"},
    "parts": {"errors", "spec"},
    "checkpoint.rules": {"errors"},
    "checkpoint.durable": {"errors"},
    "checkpoint.files": {"errors"},
    "checkpoint.hub": {"errors"},
    "families": {"errors", "spec", "checkpoint.rules", "checkpoint.files", "checkpoint.hub"},
}
WITHOUT_TORCH = ("errors", "spec", "cost", "families", "checkpoint.rules", "checkpoint.files", "checkpoint.hub")


def room(module: str) -> str:
    """archetype.nn.norm -> parts; the package itself is the empty room, above all others."""
    parts = module.split(".")[1:]
    narrow = ".".join(parts[:2])
    return narrow if narrow in STOREY else "".join(parts[:1])


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
    return {*imported(module), *(ast.unparse(node) for node in nodes(module) if isinstance(node, ast.Attribute))}


def uses(module: str, name: str) -> bool:
    return any(f"{found}.".startswith(f"{name}.") for found in reached(module))


def rooms_imported(module: str) -> set[str]:
    """Anyone may ask the package for its version."""
    return {room(name) for name in reached(module) if name.startswith("archetype.")} - {"__version__"}


def test_the_walk_sees_every_way_to_import() -> None:
    names = set(imported("archetype.nn.attention"))
    assert {"archetype.spec", "archetype.nn.masks", "torch", "jaxtyping.Float"} < names
    assert {"spec", "cost", "errors", "model", "parts"} == rooms_imported("archetype.models.build")
    assert "archetype.api" in set(imported("archetype"))
    assert uses("archetype.nn.norm", "torch")
    assert not uses("archetype.spec.norm", "torch")


@pytest.mark.parametrize("module", [name for name in MODULES if name != "archetype"])
def test_imports_point_down(module: str) -> None:
    here = room(module)
    assert here in STOREY, f"give the room of {module} a storey"
    allowed = ONLY.get(here, {other for other in STOREY if STOREY[other] < STOREY[here]})
    assert rooms_imported(module) - {here} <= allowed


@pytest.mark.parametrize("module", [name for name in MODULES if room(name) in WITHOUT_TORCH])
def test_what_reads_specifications_knows_no_torch(module: str) -> None:
    assert not uses(module, "torch")


@pytest.mark.parametrize("module", list(MODULES))
def test_only_one_module_knows_that_there_are_other_processes(module: str) -> None:
    assert module == "archetype.train.parallel" or not uses(module, "torch.distributed")


@pytest.mark.parametrize("module", list(MODULES))
def test_the_reference_library_is_used_only_to_compare_with(module: str) -> None:
    assert module == "archetype.convert.parity" or not uses(module, "transformers")


@pytest.mark.parametrize("module", list(MODULES))
def test_nothing_imports_the_command_line(module: str) -> None:
    assert room(module) == "cli" or "cli" not in rooms_imported(module)


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
    assert "archetype.cost.mamba" in loaded
    assert not {"torch", "numpy", "transformers"} & loaded
    assert "torch" in loaded_after("import archetype.models")
