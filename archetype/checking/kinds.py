"""Select the kinds to check: all kinds that a file registers, or all kinds with a name."""

from pathlib import Path

from archetype.api.extension import load_extension
from archetype.checking.examples import PLACES
from archetype.errors import SpecError
from archetype.models.spec import ModelSpec
from archetype.spec.kinds import Part, load_all_kinds
from archetype.spec.synonyms import unknown_word

Kind = tuple[type[Part], type[Part]]  # a role, and a member of it


def checked_roles() -> tuple[type[Part], ...]:
    """Return the roles whose kinds can be checked: roles of parts, and models."""
    return (*PLACES, ModelSpec)


def all_kinds() -> list[Kind]:
    """Return every kind of every checked role."""
    load_all_kinds()
    return [(role, kind) for role in checked_roles() for kind in role.kinds.values()]


def kinds_of_file(file: Path) -> list[Kind]:
    """Run a Python file and return the kinds that it registers.

    Raises:
        ArchetypeError: the file cannot be run, or registers no part of a model.
    """
    if not file.is_file():
        raise SpecError(str(file), "there is no such file", "pass a Python file that registers parts, or a kind's name")
    before = set(all_kinds())
    load_extension(file)
    if not (kinds := [kind for kind in all_kinds() if kind not in before]):
        roles = ", ".join(role.role_name() for role in checked_roles())
        raise SpecError(str(file), "registers no part of a model", f"call archetype.register with a {roles}")
    return kinds


def kinds_named(name: str) -> list[Kind]:
    """Return the kinds with this name, at most one per role.

    Raises:
        SpecError: no kind has this name.
    """
    by_name: dict[str, list[Kind]] = {}
    for role, kind in all_kinds():
        by_name.setdefault(str(kind.model_fields["kind"].default), []).append((role, kind))
    if name not in by_name:
        raise SpecError(name, *unknown_word(name, list(by_name)))
    return by_name[name]
