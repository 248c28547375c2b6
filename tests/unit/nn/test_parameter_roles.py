"""Which tensors weight decay falls on, in a model of every family: the module that makes a tensor says what it is."""

import re

import pytest
from torch import nn

from archetype import families, load_spec
from archetype.models.build import build_on_meta
from archetype.nn.parameter_roles import decayed_parameters, roles_of

# The names of all tensors of several dimensions, without their layers.
DECAYED = {
    "#.weight", "a.weight", "b.weight", "cell.weight_hh_l#", "cell.weight_ih_l#", "classifier.weight", "conv.weight",
    "dense.weight", "down.weight", "dt_proj.weight", "experts.down", "experts.gate", "experts.up", "gate.weight",
    "in_proj.weight", "k.weight", "k_global.weight", "kv_down.weight", "kv_up.weight", "lm_head.weight", "o.weight",
    "out_proj.weight", "patch.weight", "position.weight", "position_bias.weight", "project.weight",
    "projection.weight", "q.weight", "q_down.weight", "q_global.weight", "q_up.weight", "router.weight",
    "shared_gate.weight", "token.weight", "token_type.weight", "up.weight", "v.weight", "v_global.weight",
    "x_proj.weight", "kv.weight", "o_down.weight", "o_up.weight", "weights.weight", "residual_exit.weight",
    "input_gate.weight", "forget_gate.weight", "left.weight", "right.weight", "prediction.weight", "correction.weight",
    "r.weight", "a_down.weight", "a_up.weight", "decay_down.weight", "decay_up.weight", "gate_down.weight",
    "gate_up.weight", "rate_down.weight", "rate_up.weight", "value_share_down.weight", "value_share_up.weight",
}  # fmt: skip
NOT_DECAYED = {  # numbers that are added to scores, and not DeBERTa's vectors
    "cross.score": "vector", "pool.offsets": "vector", "mixer.A_log": "vector", "mixer.bonus": "vector",
    "position_bias.weight": "bias",
    "score_bias.content_bias": "bias", "score_bias.position_bias": "bias",
    "experts.down_bias": "bias", "experts.gate_bias": "bias", "experts.up_bias": "bias",
}  # fmt: skip


def smallest(presets: list[str]) -> str:
    return min(presets, key=lambda name: load_spec(name).num_layers)


def test_decay_falls_on_matrices_and_kernels_alone() -> None:
    decayed, others = set[str](), dict[str, str]()
    presets = [smallest(list(family.presets)) for family in families.FAMILIES.values() if family.presets]
    for name in (*presets, "seq2seq-attention-tiny"):
        model = build_on_meta(load_spec(name))
        decaying, roles = decayed_parameters(model), roles_of(model)
        for name, parameter in model.named_parameters():
            own = re.sub(r"\d+", "#", ".".join(name.split(".")[-2:])).removesuffix("_reverse")
            if name in decaying:
                decayed.add(own)
            elif parameter.dim() >= 2:
                others[own] = roles[name]
        assert not {name for name, role in roles.items() if role in ("norm", "bias")} & decaying
    assert decayed == DECAYED
    assert others == NOT_DECAYED


@pytest.mark.parametrize("declared", [False, True])
def test_a_module_from_outside_says_what_its_tensors_are(declared: bool) -> None:
    class Scan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates, self.mixing_bias = (nn.Parameter(nn.init.zeros_(nn.Linear(2, 3).weight)) for _ in range(2))
            self.map = nn.Linear(2, 3)

    model = Scan()
    if declared:
        model.parameter_roles = {"rates": "vector"}  # type: ignore[assignment]
    assert roles_of(model)["rates"] == "vector" and roles_of(model)["mixing_bias"] == "bias"
    assert decayed_parameters(model) == ({"map.weight"} if declared else {"map.weight", "rates"})
