"""Kinds that a test registers, and that are gone after it."""

from collections.abc import Iterator
from contextlib import contextmanager

from archetype.roles.pattern import pattern_rule
from archetype.spec.kinds import Part
from archetype.spec.registry import PROVIDED, provided, providers

CAPABILITIES = ("module", "cost", "rule", "diagram", "inspect", "infer", "parallel", "transplant")


@contextmanager
def registries_as_before() -> Iterator[None]:
    """Within the block kinds may be registered."""
    [list(providers(name)) for name in CAPABILITIES]  # what is imported stays registered
    [provided(name, role) for name in CAPABILITIES for role in Part.__subclasses__()]  # and what serves whole roles
    roles, before = {role: dict(role.kinds) for role in Part.__subclasses__()}, dict(PROVIDED)
    try:
        yield
    finally:
        for role, kinds in roles.items():
            role.kinds = kinds
        PROVIDED.clear()
        PROVIDED.update(before)
        pattern_rule.cache_clear()
