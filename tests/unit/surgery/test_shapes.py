"""Transplants without weights: shapes alone say what becomes of each tensor, and promise no more than weights do."""

import pytest

from archetype.models.build import build_on_meta
from archetype.nn.ledger import Start
from archetype.nn.transfer import Cuts
from archetype.spec.edit import assign
from archetype.surgery.operation import fill
from tests.helpers.cases import case
from tests.unit.surgery.test_transplant import FF, GQA, MHA, trained

CHANGES = (
    ((), ("name=other",)),
    (GQA, ("layers[*].mixer.num_kv_heads=4",)),
    (MHA, ("layers[*].mixer.num_kv_heads=2",)),
    (FF, ("layers[*].feedforward.d_ff=96", "num_layers=5")),
    (FF, ("layers[0].feedforward.d_ff=32", "num_layers=2")),
    ((), ("layers[*].mixer.pattern={kind: window, size: 4}",)),
    ((), ("vocab_size=80",)),
    (("head.tied=true",), ("head.tied=false",)),
    (("head.tied=false",), ("head.tied=true",)),
    ((), ("layers[1].mixer=mamba",)),
)


def test_shapes_alone_say_what_becomes_of_each_tensor() -> None:
    for before, changes in CHANGES:
        with case(changes):
            donor = trained(*before)
            spec = assign(donor.spec, list(changes))
            _, known = fill(donor.model, spec, Cuts())
            model, ledger = fill(build_on_meta(donor.spec), spec, Cuts())
            assert all(tensor.is_meta for tensor in model.state_dict().values())
            assert ledger == known


@pytest.mark.parametrize(
    ("before", "change"),
    [(MHA, "layers[*].mixer.num_kv_heads=2"), (("head.tied=false",), "head.tied=true")],
)
def test_weights_that_happen_to_be_equal_promise_more(before: tuple[str, ...], change: str) -> None:
    donor = trained(*before)
    for parameter in donor.model.parameters():
        parameter.detach().fill_(0.5)
    spec = assign(donor.spec, [change])
    assert fill(donor.model, spec, Cuts())[1].start <= Start.ROUNDED
    assert fill(build_on_meta(donor.spec), spec, Cuts())[1].start is Start.CHANGED
