"""Residual streams and attention over depth compute what transformers does, all weights random."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection, DeepseekV4HyperHead
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextHyperHead
from transformers.models.hy_v4.configuration_hy_v4 import HYV4Config
from transformers.models.hy_v4.modeling_hy_v4 import HYV4HyperConnection, HYV4HyperHead
from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.depth_attention.module import DepthAttentionModule, DepthQuery
from archetype.parts.streams.module import StreamsExit, StreamsModule
from tests.helpers.weights import distance, randomize

D, T, N = 24, 7, 3
GENERATOR = torch.Generator().manual_seed(0)
STREAM = 3 * torch.randn(2, T, N, D, generator=GENERATOR)
CONTEXT = ForwardContext.of(STREAM[:, :, 0])
SIZES: dict[str, Any] = {"hidden_size": D, "hc_mult": N, "hc_eps": 1e-3, "rms_norm_eps": 1e-2}


def deepseek(module: nn.Module) -> Tensor:
    """A layer's sublayer, as the decoder layer of DeepSeek-V4 joins it, which returns the sine of its input."""
    write, matrix, read = module(STREAM)
    return write[..., None] * read.sin()[:, :, None] + matrix.mT @ STREAM


def hy(module: nn.Module) -> Tensor:
    write, read = module(STREAM)
    return write[..., None] * read.sin()[:, :, None] + STREAM


CASES = {
    "deepseek_v4": (
        DeepseekV4HyperConnection, DeepseekV4HyperHead, DeepseekV4Config(hc_sinkhorn_iters=5, **SIZES), deepseek,
        {"sinkhorn_steps": 5},
    ),
    "hy_v4": (
        HYV4HyperConnection, HYV4HyperHead, HYV4Config(hc_magnitude=1.5, **SIZES), hy,
        {"sinkhorn_steps": 0, "write_scale": 1.5, "write_eps": 1e-3},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_streams_are_read_written_and_left_as_in_transformers(name: str) -> None:
    connection, head, config, joined, fields = CASES[name]
    residual = spec.Streams(num_streams=N, eps=1e-3, norm_eps=1e-2, **fields)
    theirs, their_exit = randomize(connection(config)), randomize(head(config))
    ours, our_exit = StreamsModule(residual, Place(D)), StreamsExit(residual, D)
    ours.weights.load_state_dict({"weight": theirs.fn, "bias": theirs.base, "scale": theirs.scale})
    our_exit.load_state_dict({"weight": their_exit.hc_fn, "bias": their_exit.hc_base, "scale": their_exit.hc_scale})

    def written() -> Tensor:
        return ours.write(STREAM, ours.read(STREAM, CONTEXT).sin(), CONTEXT)

    assert distance(written(), joined(theirs)) < 1e-6
    assert distance(our_exit(STREAM), their_exit(STREAM)) < 1e-6
    for weight in (theirs.fn[-1], theirs.base[-1:], theirs.scale[-1:]):  # a lost tensor would show
        weight.add_(1.0)
        assert distance(written(), joined(theirs)) > 1e-4
        weight.sub_(1.0)


def test_glm_leaves_by_the_mean() -> None:
    residual = spec.Streams(num_streams=N, exit="mean")
    assert StreamsModule.exit(residual, Place(D)) is None
    assert torch.equal(StreamsModule.leave(residual, STREAM), Glm5NextTextHyperHead()(STREAM))


@torch.no_grad()
def test_attention_over_depth_reads_as_inkling_2_does() -> None:
    """Five layers of two sublayers, which return the sine of their input, in blocks of two layers."""
    config = Inkling2TextConfig(hidden_size=D, attn_implementation="eager")
    residual = spec.DepthAttention(layers_per_block=2, normed_values=True, scaled=True)
    queries = [randomize(Inkling2BlockAttentionResidual(config)) for _ in range(11)]
    x = STREAM[:, :, 0]

    blocks, partial = x[:, :, None][:, :, :0], x
    for layer in range(5):
        read = queries[2 * layer](blocks, partial)[0] if layer else partial
        if layer % 2 == 0:
            blocks, partial = torch.cat((blocks, partial[:, :, None]), 2), read.sin()
        else:
            partial = partial + read.sin()
        partial = partial + queries[2 * layer + 1](blocks, partial)[0].sin()
    expected = queries[10](blocks, partial)[0]

    def ours() -> Tensor:
        stream = DepthAttentionModule.enter(residual, x)
        for content in range(10):
            CONTEXT.layer = content // 2
            place = Place(D, content // 2, 5, content=content, sublayer=content % 2)
            module = DepthAttentionModule(residual, place)
            if module.attend is not None:
                module.attend.query.copy_(queries[content].query[None])
            stream = module.write(stream, module.read(stream, CONTEXT).sin(), CONTEXT)
        out = DepthQuery(residual, D)
        out.query.copy_(queries[10].query[None])
        y: Tensor = out(stream)
        return y

    assert distance(ours(), expected) < 1e-6
    queries[7].query.add_(1.0)
    assert distance(ours(), expected) > 1e-3
