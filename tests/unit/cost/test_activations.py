"""Activations: what is counted is what autograd keeps."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from archetype import families, spec
from archetype.cost import activations
from archetype.cost.saved_activations import Computed
from archetype.models import build
from tests.helpers.specs import DECODERS

BATCH, LENGTH = 3, 20


def kept_by_autograd(model: spec.Decoder, computed: Computed) -> int:
    """Bytes of all storages that are saved in a forward pass with its loss, parameters apart."""
    built = build(model).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in built.parameters()}
    kept: dict[int, torch.Tensor] = {}  # held, so that no memory is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    tokens = torch.zeros(BATCH, LENGTH + 1, dtype=torch.long)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=computed == "bfloat16"),
    ):
        logits = built(tokens[:, :-1])
        cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def counted(model: spec.Decoder, computed: Computed) -> int:
    return activations.of_model(model, BATCH, LENGTH, computed).saved


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_the_two_first_families_keep_exactly_what_is_counted(name: str) -> None:
    preset = families.preset(name)
    assert counted(preset, "float32") == kept_by_autograd(preset, "float32")


EXACT = (
    "attention", "rotary", "alibi", "relative bias", "mlp", "post norm", "sandwich", "parallel",
    "parallel, shared norm", "learned", "tied",
)  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_these_parts_keep_exactly_what_is_counted(name: str) -> None:
    assert counted(DECODERS[name], "float32") == kept_by_autograd(DECODERS[name], "float32")


@pytest.mark.parametrize("change", ["layers[*].mixer.dropout=0.1", "layers[*].dropout=0.1", "embedding.dropout=0.1"])
def test_what_drops_out_is_remembered(change: str) -> None:
    model = spec.assign(families.preset("gpt2-tiny"), [change])
    assert counted(model, "float32") == kept_by_autograd(model, "float32")


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "silu", "{kind: swish, beta: 2.0}"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_every_activation_keeps_its_input_or_its_output(name: str, activation: str) -> None:
    model = spec.assign(families.preset(name), [f"layers[*].feedforward.activation={activation}"])
    assert counted(model, "float32") == kept_by_autograd(model, "float32")


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # a norm that is given bfloat16 tells that it has float32 weights
@pytest.mark.parametrize("computed", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", DECODERS)
def test_every_part_keeps_about_what_is_counted(name: str, computed: Computed) -> None:
    """Within a twentieth in float32; in bfloat16 a kernel for CPU may keep some of it in float32."""
    tolerance = 0.05 if computed == "float32" else 0.2
    assert counted(DECODERS[name], computed) == pytest.approx(kept_by_autograd(DECODERS[name], computed), rel=tolerance)


def test_recomputed_blocks_keep_their_inputs_and_one_block_at_a_time() -> None:
    preset = families.preset("gpt2")
    kept = activations.of_model(preset, 2, 1024, "float32")
    assert kept.inputs == 12 * 2 * 1024 * 768 * 4
    assert kept.blocks == 12 * kept.largest
    assert kept.logits == 2 * 1024 * 50_257 * 4
    assert kept.peak_recomputed == kept.outside + kept.inputs + max(kept.largest, kept.logits) < kept.peak


def test_twice_the_rows_keep_twice_as_much_but_for_what_rows_share() -> None:
    preset = families.preset("gpt2")
    once, twice = (activations.of_model(preset, batch, 512, "float32").saved for batch in (1, 2))
    assert 2 * once - twice == 512 * 8 + 4  # the positions' numbers, and how many targets there are
