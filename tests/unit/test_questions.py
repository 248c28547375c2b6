"""Questions by class: who asks whether a node of a specification is of one kind, and does not ask its role.

A part's own folder may ask for its own classes. Foreign vocabularies (`families/`, `convert/gguf/`) and studies of
particular kinds name them, too. All other questions are counted here, so that they become fewer.
"""

import ast
from collections.abc import Iterator
from functools import cache

from archetype.convert.infer.quirks import QUIRKS
from archetype.families import FAMILIES
from tests.unit.test_imports import MODULES, PACKAGE, dotted, layer

OUTSIDE = ("archetype.families.", "archetype.convert.gguf.", "archetype.studies.")
CLASS_TESTS = ("isinstance", "issubclass")
FACADE = "archetype.spec"
# How many questions each file still asks.
KINDS_TOO = {"mamba", "mamba2", "ngram", "megabyte", "transformer"}  # names of families that kinds have as well
ALLOWED = {
    # a part about the members of its own fields
    "parts/attention/build.py": 1,
    "parts/attention/cost.py": 1,
    "parts/attention/module.py": 1,
    "parts/attention/diagram.py": 3,
    "parts/attention/infer_index.py": 1,
    "parts/attention/parallel.py": 1,
    "parts/attention/recorded.py": 2,
    "parts/attention/spec.py": 11,
    "parts/compressed_attention/infer.py": 1,
    "parts/experts/module.py": 1,
    "parts/latent_attention/infer.py": 2,
    "parts/latent_attention/module.py": 1,
    "parts/latent_attention/spec.py": 1,
    "parts/linear_attention/spec.py": 3,
    # a kind of model or a block about its parts
    "models/block/spec.py": 2,
    # what reads checkpoints whose names are not ours
    "convert/infer/rules.py": 3,
    "convert/infer/feedforward.py": 2,
    # an example of a block, which is no kind
    "checking/values.py": 1,
}


def owner(module: str) -> str | None:
    """The folder whose specification a module declares: archetype.parts.norm.spec -> archetype.parts.norm"""
    package, _, file = module.rpartition(".")
    return package if layer(module) in ("parts", "models") and file == "spec" and package.count(".") == 2 else None


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def declared() -> dict[str, set[str]]:
    """The names of all classes in the `spec.py` of a folder, by module."""
    return {
        module: {node.name for node in tree(module).body if isinstance(node, ast.ClassDef)}
        for module in MODULES
        if owner(module)
    }


@cache
def bound(module: str) -> dict[str, tuple[str, ast.expr | None]]:
    """What names of a module stand for: `MODULE:NAME` of an import, or the expression of an assignment."""
    names: dict[str, tuple[str, ast.expr | None]] = {}
    for node in tree(module).body:
        if isinstance(node, ast.Assign):
            names |= {target.id: ("", node.value) for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = ("", node.value)
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {one.asname or one.name: (f"{node.module}:{one.name}", None) for one in node.names}
        elif isinstance(node, ast.Import):
            names |= {one.asname: (f"{one.name}:", None) for one in node.names if one.asname}
    return names


def of_name(module: str, name: str, seen: frozenset[tuple[str, str]]) -> set[str]:
    """The classes of specifications that a name of a module stands for."""
    if (module, name) in seen or module not in MODULES:
        return set()
    seen |= {(module, name)}
    if where := [one for one in declared() if module in (one, FACADE) and name in declared()[one]]:
        return {f"{one}.{name}" for one in where}
    source, value = bound(module).get(name, ("", None))
    base, _, inner = source.partition(":")
    return of_name(base, inner, seen) if source else classes(module, value, seen) if value is not None else set()


def classes(module: str, expression: ast.AST, seen: frozenset[tuple[str, str]] = frozenset()) -> set[str]:
    """The classes of specifications that are named in an expression: alone, in tuples, unions, or by an alias."""
    named: set[str] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            named |= of_name(module, node.id, seen)
        elif isinstance(node, ast.Attribute) and (base := dotted(node.value)):
            source = bound(module).get(base, (base, None))[0].replace(":", ".").rstrip(".")
            named |= of_name(source, node.attr, seen)
    return named


def questions(module: str) -> Iterator[tuple[int, set[str]]]:
    """Lines that ask for a class, with the classes of other folders that they name."""
    own = ".".join(module.split(".")[:3]) if layer(module) in ("parts", "models") else ""
    for node in ast.walk(tree(module)):
        asked: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASS_TESTS:
            asked = node.args[1]
        elif isinstance(node, ast.MatchClass):
            asked = node.cls
        elif isinstance(node, ast.Compare) and any(is_type(one) for one in (node.left, *node.comparators)):
            asked = node
        if asked is None:
            continue
        if named := {one for one in classes(module, asked) if owner(one.rpartition(".")[0]) != own}:
            yield getattr(node, "lineno", 0), named


def is_type(node: ast.AST) -> bool:
    """Whether an expression is `type(x)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def place(module: str) -> str:
    return str(MODULES[module].relative_to(PACKAGE))


def test_the_walk_sees_every_way_to_name_a_class() -> None:
    """Imported under another name, of a module, in tuples and unions, by an alias, and from where users find it."""
    text = "isinstance(x, (EmbeddingSpec, NGramSpec | int, archetype.parts.norm.spec.NoNorm))"
    names = {one.rpartition(".")[2] for one in classes("archetype.models.ngram.module", ast.parse(text))}
    assert names == {"Embedding", "NGram", "NoNorm"}
    of_folder = classes("archetype.parts.attention.module", ast.parse("isinstance(x, spec.Attention)"))
    assert of_folder == {"archetype.parts.attention.spec.Attention"}
    query = of_name("archetype.parts.latent_attention.spec", "Query", frozenset())
    assert {one.rpartition(".")[2] for one in query} == {"DirectQuery", "LowRankQuery"}
    assert of_name("archetype.spec", "Decoder", frozenset()) == {"archetype.models.decoder.spec.Decoder"}
    asked = dict(questions("archetype.parts.attention.recorded"))
    assert {"archetype.parts.pattern.spec.Full", "archetype.parts.pattern.spec.Window"} in asked.values()


def test_roles_are_asked_and_not_classes() -> None:
    # which other kinds a part can continue is the subject of its transplants
    modules = [module for module in MODULES if not module.startswith(OUTSIDE) and not module.endswith(".transplant")]
    asked = {place(module): count for module in modules if (count := sum(1 for _ in questions(module)))}
    assert asked == ALLOWED


def test_nothing_is_decided_by_the_name_of_a_family() -> None:
    """A name is a key of a table of facts, as in `families` and in the quirks of what is inferred, or it is none."""
    names = {*FAMILIES, *QUIRKS} - KINDS_TOO
    compared = [
        f"{place(module)}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Compare)
        if names
        & {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}
    ]
    assert len(names) > 40 and compared == []
