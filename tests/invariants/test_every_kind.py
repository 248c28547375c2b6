"""What `archetype check` asks holds of every kind of every role, and no class that a file can name is left out."""

import pytest

from archetype import spec
from archetype.checking.examples import examples
from archetype.checking.kinds import Kind, all_kinds
from archetype.checking.passes import compiled_is_eager
from archetype.checking.run import INVARIANTS, check_example
from tests.helpers.examples import every
from tests.unit.test_coverage import held, nameable

KINDS = {f"{role.role_name()} {kind.model_fields['kind'].default}": (role, kind) for role, kind in all_kinds()}
ASKED = [invariant for invariant in INVARIANTS if invariant.check is not compiled_is_eager]
# Their examples would need a field that belongs to another one; test_encoder_decoders.py has it.
# LongRoPE's lists have as many numbers as there are pairs, which no field of its own says
ELSEWHERE = {spec.StateBridge, spec.LongRopeScaling}


@pytest.mark.parametrize("name", every(4, KINDS))
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["share", "all"])
def test_a_kind_holds_what_its_role_asks(name: str, whole: bool) -> None:
    """With its defaults, or in an encoder or with a field changed, by turns; in the soak with each of these.

    Not under a compiler, which would go through the checks of shapes: tests.helpers.compiled is a program.
    """
    listed = examples(*KINDS[name])
    if not whole:
        listed = [listed[[*KINDS].index(name) // 4 % len(listed)]]
    results = [(example.name, check_example(example, ASKED)) for example in listed]
    assert [(example, row) for example, rows in results for row in rows if row.result == "fails"] == []
    holding = {row.invariant for _, rows in results for row in rows if row.result == "holds"}
    assert len(holding) >= 9


def test_fields_that_need_another_field_or_layer_are_tried() -> None:
    names = {example.name for kind in KINDS.values() for example in examples(*kind)}
    assert {
        "carried=true", "delayed=false, true", "limit_after=true, limit=2.0", "shared_gate=true, shared=mlp"
    } <= names  # fmt: skip


def test_every_class_stands_in_an_example() -> None:
    classes = {cls for kind in KINDS.values() for model in models(kind) for cls in held(model)}
    assert nameable() - classes == ELSEWHERE


def models(kind: Kind) -> list[spec.ModelSpec]:
    return [example.model for example in examples(*kind)]
