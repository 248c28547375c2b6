"""ZAYA1 by its files: convolutions of queries and keys, learned factors on the stream, and routers that hand on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from archetype import spec
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from tests.helpers.published import WRONG, swap
from tests.helpers.specs import block, decoder, experts
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import TEXT
from tests.parity.test_inferred_families import SIZES, TOKENS, check, read, written

ZAYA: dict[str, Any] = SIZES | {
    "architectures": ["ZayaForCausalLM"], "model_type": "zaya", "head_dim": 8, "num_experts": 4,
    "num_experts_per_tok": 1, "moe_intermediate_size": 16, "num_hidden_layers": 2, "router_hidden_size": 12,
    "cca_time0": 2, "cca_time1": 3, "sliding_window": 6, "rms_norm_eps": 1e-3, "tie_word_embeddings": True,
    "layer_types": ["hybrid_sliding", "hybrid"],
}  # fmt: skip
ZAYA.pop("intermediate_size")


def as_loaded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the bias of the idle expert that transformers sets when it loads a file."""
    for name in (name for name in tensors if name.endswith("balancing_biases")):
        tensors[name][-1] = -1.0
    return tensors


@torch.no_grad()
def test_transformers_replaces_the_bias_of_the_idle_expert(tmp_path: Path) -> None:
    """Whatever the file says; here it is that of the file."""
    theirs = written(ZAYA, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for number, (layer, ours) in enumerate(zip(theirs.model.layers, read(tmp_path).model.blocks, strict=True)):
        biases = stored[f"model.layers.{number}.mlp.gate.balancing_biases"]
        assert torch.equal(ours.feedforward.correction, biases) and biases[-1] != -1
        assert torch.equal(layer.mlp.gate.balancing_biases, torch.cat((biases[:-1], torch.tensor([-1.0]))))


@torch.no_grad()
def test_zaya(tmp_path: Path) -> None:
    """Every tensor counts, in whole texts and step by step."""
    mistake = swap("blocks.0.mixer_residual.carried.weight", "blocks.0.mixer_residual.added.weight")
    lm = check(ZAYA, mistake, tmp_path, as_loaded)
    mixers = [layer.mixer for layer in lm.spec.layers]
    assert {mixer.joint_convolution for mixer in mixers} == {spec.JointConvolution(kernels=(2, 3))}
    assert [mixer.pattern.kind for mixer in mixers] == ["window", "full"]
    assert [layer.feedforward.router.carried for layer in lm.spec.layers] == [False, True]
    logits, state = lm.model(TOKENS).logits, lm.model.state_dict()
    state |= {"blocks.0.feedforward.router.carry": torch.zeros(12)}
    for name in (
        "mixer.joint.depthwise.bias", "mixer.joint.grouped.weight", "mixer.key_factors", "feedforward.router.carry",
        "feedforward.router.fc2.bias", "feedforward_residual.added.bias", "feedforward.correction", "mixer.v.weight",
    ):  # fmt: skip
        lm.model.load_state_dict(state | {f"blocks.1.{name}": state[f"blocks.0.{name}"]}, strict=False)
        assert distance(lm.model(TOKENS).logits, logits) > WRONG, name


@torch.no_grad()
def test_factors_of_one_leave_the_plain_sum() -> None:
    plain = randomize(build(decoder(block(), block()))).double()
    summed = build(decoder(block(), block(), residual={"kind": "normed_sum", "added": "affine"})).double().eval()
    tokens = TEXT % 31
    summed.load_state_dict(plain.state_dict(), strict=False)
    assert distance(summed(tokens).logits, plain(tokens).logits) < 1e-12
    summed.blocks[0].mixer_residual.carried.weight.mul_(1.1)
    assert distance(summed(tokens).logits, plain(tokens).logits) > WRONG


@torch.no_grad()
def test_idle_experts_may_return_nothing() -> None:
    router = {"kind": "softmax", "expert_bias": True}
    for output in ("zero", "input"):
        part = randomize(build(decoder(block(feedforward=experts(idle=2, idle_output=output, router=router)))))
        mixture = part.blocks[0].feedforward
        mixture.correction.zero_()
        x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
        y = mixture(x, ForwardContext.of(x))
        mixture.correction[-2:] = 9.0  # every token chooses both idle experts
        idle = mixture(x, ForwardContext.of(x))
        assert distance(y, idle) > WRONG
        assert torch.equal(idle, torch.zeros_like(x)) == (output == "zero")
        assert output == "zero" or distance(torch.nn.functional.cosine_similarity(idle, x, -1), torch.ones(2, 5)) < 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router": {"kind": "mlp", "width": 6, "carried": True}}, "reads 6 features .*, which provides none"),
        ({"router": {"kind": "mlp", "width": 5}}, "reads 6 features .*, which provides 5"),
    ],
)
def test_a_router_reads_that_of_the_layer_before(changes: dict[str, Any], message: str) -> None:
    second = block(feedforward=experts(router={"kind": "mlp", "width": 6, "carried": True}))
    with pytest.raises(SpecError, match=message):
        decoder(block(feedforward=experts(**changes)), second)
    together = {"kind": "together", "parts": [block()["feedforward"], second["feedforward"]]}
    with pytest.raises(SpecError, match=r"^layers\[1\]\.feedforward\.parts\[1\]\.router\.carried: reads 6"):
        decoder(block(), block(feedforward=together))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"joint_convolution": {"kernels": [1, 1]}}, "kernels of 1 read no other position"),
        ({"joint_convolution": {}, "bias": True}, "bias: is not supported with joint_convolution"),
        ({"joint_convolution": {}, "keys_as_values": True}, "keys_as_values: is not supported with joint_convolution"),
    ],
)
def test_what_is_convolved_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        decoder(block(mixer={"kind": "attention", "num_heads": 4} | fields))
