"""Three architectures written from outside: each is right, and holds what `archetype check` asks of our own parts.

The files are `tests/extensions`, each of fewer than 150 lines without imports; nothing in the package names them.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import archetype
from archetype import spec
from archetype.api.extension import load_extension
from archetype.checking.kinds import kinds_of_file
from archetype.checking.passes import compiled_is_eager
from archetype.checking.run import check_kind
from archetype.cost.formula import symbol
from archetype.cost.registry import MixerCost, ResidualCost
from archetype.cost.work import Work
from archetype.errors import SpecError
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.spec.kinds import Part
from archetype.spec.registry import PROVIDED, providers
from archetype.training.block_execution import recompute_blocks
from tests.helpers.documents import GUIDES, files_of
from tests.helpers.inspected import inspection
from tests.helpers.weights import distance, randomize

FILES = sorted((Path(__file__).parent.parent / "extensions").glob("[!_]*.py"))
CAPABILITIES = ("module", "cost", "rule", "diagram", "inspect", "infer", "parallel")
EXACT, WRONG = 1e-10, 1e-3  # of float64
D, T = 24, 7
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TIME_MIXING = {"kind": "rwkv7_time_mixing", "num_heads": 3, "rank": 5}
DIFFERENTIAL = {"kind": "differential_attention", "num_heads": 3}
MODELS: dict[str, dict[str, Any]] = {
    "differential_attention": {"mixer": DIFFERENTIAL},
    "rwkv7": {"mixer": TIME_MIXING, "feedforward": {"kind": "rwkv7_channel_mixing", "d_ff": 40}},
    "hyper_connections": {},
}


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    """What a test registers is gone after it."""
    [list(providers(name)) for name in CAPABILITIES]  # what is imported stays registered
    roles, before = {role: dict(role.kinds) for role in Part.__subclasses__()}, dict(PROVIDED)
    yield
    for role, kinds in roles.items():
        role.kinds = kinds
    PROVIDED.clear()
    PROVIDED.update(before)


def load(name: str) -> None:
    (file,) = (file for file in FILES if file.stem == name)
    load_extension(file)


def model(name: str, **fields: Any) -> spec.Decoder:
    """A decoder of three layers with an extension's parts; of RWKV-7 later ones read the first one's values."""
    load(name)
    data = archetype.load_spec("llama-tiny").dump() | {"d_model": D, "vocab_size": 31, "context_length": 16}
    block = data["layers"][0]["block"] | {"feedforward": {"kind": "gated", "d_ff": 40, "activation": "silu"}}
    block["mixer"] = {"kind": "attention", "num_heads": 3, "position": {"kind": "rotary"}}
    block |= MODELS[name]
    later = block | ({"mixer": TIME_MIXING | {"values_from": 0}} if name == "rwkv7" else {})
    residual = {"residual": {"kind": name}} if name == "hyper_connections" else {}
    parsed = archetype.load_spec(data | {"layers": [block, later, later]} | residual | fields)
    assert isinstance(parsed, spec.Decoder)
    return parsed


def part(role: type[Part], kind: str, layer: int = 0, **fields: Any) -> Any:
    """The module of one part in float64, every tensor random."""
    described = role.kinds[kind](kind=kind, **fields)
    return randomize(module_class(described)(described, Place(D, layer)).double()).requires_grad_(False)


def test_sizes_follow_the_model_as_they_say() -> None:
    """Heads, ranks and inner widths of a part from outside, by `set --scale`; a plain size, of streams, stays."""
    for factor, (heads, rank, inner) in {"2x": (6, 10, 80), "4x": (12, 20, 160)}.items():
        first: Any = spec.scaled(model("rwkv7"), [f"width={factor}"]).layers[0]
        assert (first.mixer.num_heads, first.mixer.rank, first.feedforward.d_ff) == (heads, rank, inner)
    wide: Any = spec.scaled(model("differential_attention"), ["width=2x"])
    assert (wide.d_model, wide.layers[0].mixer.num_heads) == (2 * D, 6)
    streams: Any = spec.scaled(model("hyper_connections"), ["width=2x"]).residual
    assert streams.num_streams == 4


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_row_of_archetype_check_holds(file: Path) -> None:
    """Compiled in `test_an_extension_is_compiled`."""
    _, _, code = file.read_text(encoding="utf-8").partition("\n\n\n")  # after the imports
    assert 80 < len(code.splitlines()) < 150
    for kind in kinds_of_file(file):
        rows = check_kind(*kind, without=(compiled_is_eager,)).rows
        assert [row for row in rows if row.result == "fails"] == []
        assert sum(row.result == "holds" for row in rows) >= len(rows) - 2


def test_the_tutorial_about_attention_is_the_file() -> None:
    (document,) = (file for file in GUIDES if file.stem == "attention_but_different")
    (file,) = (file for file in FILES if file.stem == "differential_attention")
    quoted = files_of(document)[file.name]
    assert [line for line in quoted.splitlines() if line] == [line for line in file.read_text().splitlines() if line]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # of torch's own compiler
def test_an_extension_is_compiled(file: Path) -> None:
    for kind in kinds_of_file(file):
        (row,) = (row for row in check_kind(*kind).rows if row.invariant == "compiled blocks as eager")
        assert row.result == "holds", row


@pytest.mark.parametrize("name", MODELS)
def test_it_learns_and_recomputes_to_the_bit(name: str) -> None:
    """Some steps on one text; activations that are computed twice give the same gradients."""
    tokens, losses = torch.randint(31, (2, 16), generator=torch.Generator().manual_seed(1)), []
    built, again = (build(model(name), seed=0).train() for _ in range(2))
    recompute_blocks(again, "blocks")
    optimizer = torch.optim.AdamW(built.parameters(), lr=0.01)
    for step in range(16):
        losses.append(next_token_loss(built, tokens))
        optimizer.zero_grad()
        losses[-1].backward()
        if step == 0:
            next_token_loss(again, tokens).backward()
            pairs = zip(built.parameters(), again.parameters(), strict=True)
            assert all(torch.equal(one.grad, other.grad) for one, other in pairs)
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def next_token_loss(built: nn.Module, tokens: Tensor) -> Tensor:
    logits = built(tokens).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("name", MODELS)
def test_it_writes_the_same_text_with_a_state_as_without(name: str) -> None:
    built = randomize(build(model(name))).requires_grad_(False)
    tokens = torch.tensor([[3], [11]])
    step, newest = DecodeStep(built, built.new_state(2)), tokens
    for _ in range(12):
        logits = step(newest)
        newest = built(tokens).logits[:, -1].argmax(-1, keepdim=True)
        assert torch.equal(logits.argmax(-1, keepdim=True), newest)
        tokens = torch.cat((tokens, newest), 1)
    assert step.replay is not None or step._library is None


@pytest.mark.parametrize("name", MODELS)
def test_it_is_counted_as_it_is_built_and_drawn(name: str) -> None:
    described = model(name)
    built, report = build(described), archetype.cost_report(described, batch=2, length=16)
    assert report.parameters["total"] == sum(parameter.numel() for parameter in built.parameters())
    assert report.state["bytes"] == built.new_state(2, 16, torch.bfloat16).nbytes
    scene = archetype.draw(described, batch=2, length=16).scene
    assert sum(box.cost.flops for box in scene.boxes) == report.flops["forward"]


@pytest.mark.parametrize("name", MODELS)
def test_it_is_looked_at(name: str) -> None:
    """Its last layer answers as the model, and its state is read token by token with what another layer left."""
    built = randomize(build(model(name))).requires_grad_(False)
    shown = inspection(built)
    assert shown.max_logit_difference == 0.0 and {"lens", "residual"} < set(shown.views)
    assert shown.lens().kl[-1].max() < 1e-5
    assert ("attribution" in shown.views) == (name != "hyper_connections")
    if name == "rwkv7":
        ids, state = shown.trace.inputs.ids, built.new_state(1)
        assert ids is not None
        built(ids, state)
        (read,) = (one for one in shown.recurrent().series if one.path == "blocks.2.mixer" and "memory" in one.name)
        assert float(read.values[-1]) == pytest.approx(float(state.layers[2].mixer.memory.norm()), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_layers_that_share_more_than_vectors_are_no_stages_of_a_pipeline(name: str) -> None:
    assert model(name, head={"kind": "language_model", "tied": False}).divides_into_stages == (
        name == "differential_attention"
    )


@pytest.mark.parametrize("name", ["differential_attention", "rwkv7"])
def test_the_products_of_a_mixer_are_those_of_a_pass(name: str) -> None:
    load(name)
    fields = MODELS[name]["mixer"]
    mixer = spec.Mixer.kinds[fields["kind"]](**fields)
    work = Work(symbol("B", 2), symbol("T", T), "forward")
    flops = MixerCost.of(mixer, symbol("D", D)).flops(work)
    counted = sum(formula.value for formula in flops.values())
    if name == "differential_attention":  # `attend` widens keys to the width of values, here twice that of keys
        counted += flops["scores"].value
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        part(spec.Mixer, **fields)(X, ForwardContext.of(X))
    assert counter.get_total_flops() == counted


# differential attention


def test_differential_attention_is_that_of_the_paper() -> None:
    """Pair by pair: the difference of two softmaxes, in float64."""
    load("differential_attention")
    mixer = part(spec.Mixer, layer=2, **DIFFERENTIAL)
    expected = differential(mixer, layer=2)
    assert distance(mixer(X, ForwardContext.of(X)), expected) < EXACT
    assert distance(differential(mixer, layer=1), expected) > WRONG
    mixer.lambda_k2.mul_(1.5)
    assert distance(differential(mixer, layer=2), expected) > WRONG


def differential(mixer: Any, layer: int) -> Tensor:
    heads, features = mixer.heads, mixer.head_dim
    start = 0.8 - 0.6 * math.exp(-0.3 * (layer + 1 - 1))
    share = math.exp((mixer.lambda_q1 * mixer.lambda_k1).sum()) - math.exp((mixer.lambda_q2 * mixer.lambda_k2).sum())
    outputs = torch.zeros_like(X)
    for row, head, i in ((row, head, i) for row in range(len(X)) for head in range(heads) for i in range(T)):
        first, weights = 2 * head * features, []
        for half in (first, first + features):
            rows = slice(half, half + features)
            query = turned(mixer.q.weight[rows] @ X[row, i], i)
            scores = [query @ turned(mixer.k.weight[rows] @ X[row, j], j) / math.sqrt(features) for j in range(i + 1)]
            weights.append(torch.stack(scores).softmax(0))
        rows = slice(first, first + 2 * features)
        values = X[row, : i + 1] @ mixer.v.weight[rows].T
        y = (weights[0] - (share + start) * weights[1]) @ values
        y = y / (y.square().mean() + 1e-5).sqrt() * mixer.norm.weight
        outputs[row, i] += mixer.o.weight[:, rows] @ ((1 - start) * y)
    return outputs


def turned(x: Tensor, position: int) -> Tensor:
    """Rotary positions: feature j and j + P / 2 are a pair; angles have the bits of float32 in every model."""
    half = len(x) // 2
    angles = position * 10000.0 ** (-torch.arange(half) / half)
    cos, sin, a, b = angles.cos().double(), angles.sin().double(), x[:half], x[half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin))


def test_differential_attention_is_that_of_transformers() -> None:
    """DiffLlama stores the first maps of all heads before the second ones, and its norm has no weight."""
    from transformers import DiffLlamaConfig
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

    load("differential_attention")
    mixer = part(spec.Mixer, "differential_attention", layer=3, num_heads=2)
    mixer.norm.weight.fill_(1.0)
    config = DiffLlamaConfig(hidden_size=D, num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5)
    config._attn_implementation = "eager"
    theirs = DiffLlamaAttention(config, layer_idx=3).double().requires_grad_(False)
    for name in "qkv":
        weight = getattr(mixer, name).weight.view(2, 2, -1, D).transpose(0, 1)  # (maps, heads, P, D)
        getattr(theirs, f"{name}_proj").weight.copy_(weight.reshape(D, D))
    theirs.o_proj.weight.copy_(mixer.o.weight)
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        getattr(theirs, name).copy_(getattr(mixer, name))
    places = torch.arange(T)[None]
    mask = torch.full((T, T), -torch.inf, dtype=X.dtype).triu(1)[None, None]
    angles = DiffLlamaRotaryEmbedding(config)(X, places)

    def result() -> Tensor:
        output: Tensor = theirs(X, angles, mask)[0]
        return output

    ours = mixer(X, ForwardContext.of(X))
    assert distance(ours, result()) < 1e-6  # its lambda and angles are made in float32
    theirs.lambda_init += 0.1
    assert distance(ours, result()) > WRONG


# RWKV-7


def test_time_mixing_is_that_of_the_paper() -> None:
    """Token by token in float64; the second layer mixes the first one's values into its own."""
    load("rwkv7")
    first, second = (part(spec.Mixer, **TIME_MIXING, values_from=source) for source in (None, 0))
    context = ForwardContext.of(X)
    ours = first(X, context)
    expected, values = time_mixing(first, X)
    assert distance(ours, expected) < EXACT
    context.layer = 1
    mixed, own = second(ours, context), ours.flip(1)
    expected, _ = time_mixing(second, ours, values)
    assert distance(mixed, expected) < EXACT
    assert distance(time_mixing(second, ours, values.flip(1))[0], expected) > WRONG
    assert distance(time_mixing(second, own, values)[0], expected) > WRONG
    for name, parameter in second.named_parameters():  # each has its part in the result
        before = parameter.clone()
        parameter.mul_(torch.linspace(0.5, 1.5, parameter.numel(), dtype=X.dtype).view_as(parameter))
        assert distance(time_mixing(second, ours, values)[0], expected) > 1e-6, name
        parameter.copy_(before)


def time_mixing(mixer: Any, x: Tensor, first_values: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Equations 3 to 22 of Peng 2025, with column vectors; the results, and the values before they are mixed."""
    w = {name: parameter.double() for name, parameter in mixer.named_parameters()}
    heads, size, outputs, values = *mixer.heads, torch.zeros_like(x), torch.zeros_like(x)

    def low(name: str, vector: Tensor, activation: Any = lambda y: y) -> Tensor:
        result: Tensor = w[f"{name}_low.2.weight"] @ activation(w[f"{name}_low.0.weight"] @ vector)
        return result

    for row in range(len(x)):
        state, before = torch.zeros(heads, size, size, dtype=x.dtype), torch.zeros(D, dtype=x.dtype)
        for t in range(x.shape[1]):
            now = x[row, t]
            inputs = {name: now + w[f"x_{name}"] * (before - now) for name in "rwkvag"}
            r, k, v = (w[f"{name}.weight"] @ inputs[name] for name in "rkv")
            values[row, t] = v
            if first_values is not None:
                v = torch.lerp(v, first_values[row, t], torch.sigmoid(w["v0"] + low("v", inputs["v"])))
            decay = torch.exp(-torch.exp(-nn.functional.softplus(-(w["w0"] + low("w", inputs["w"], torch.tanh))) - 0.5))
            rate, gate = torch.sigmoid(w["a0"] + low("a", inputs["a"])), low("g", inputs["g"], torch.sigmoid)
            removal = k * w["k_k"]
            k = k * torch.lerp(torch.ones_like(rate), rate, w["k_a"])
            result = torch.zeros_like(now)
            for head in range(heads):
                own = slice(head * size, (head + 1) * size)
                key = removal[own] / removal[own].norm()
                erase = torch.diag(decay[own]) - torch.outer(key, rate[own] * key)
                state[head] = state[head] @ erase + torch.outer(v[own], k[own])
                y = state[head] @ r[own]
                y = (y - y.mean()) / (y.var(correction=0) + 64e-5).sqrt()
                y = y * w["norm.weight"][own] + w["norm.bias"][own]
                result[own] = y + (r[own] * k[own] * w["r_k"][head]).sum() * v[own]
            outputs[row, t], before = w["o.weight"] @ (result * gate), now
    return outputs, values


def test_channel_mixing_is_that_of_the_paper() -> None:
    load("rwkv7")
    mixing = part(spec.FeedForward, "rwkv7_channel_mixing", d_ff=40)

    def channel_mixing(before: int) -> Tensor:
        outputs = torch.zeros_like(X)
        for row, t in ((row, t) for row in range(len(X)) for t in range(T)):
            last = X[row, t - before] if t >= before else torch.zeros_like(X[row, t])
            mixed = X[row, t] + mixing.x_k * (last - X[row, t])
            outputs[row, t] = mixing.v.weight @ (mixing.k.weight @ mixed).clamp(min=0).square()
        return outputs

    ours = mixing(X, ForwardContext.of(X), None)
    assert distance(ours, channel_mixing(1)) < EXACT and distance(ours, channel_mixing(2)) > WRONG


@pytest.mark.parametrize(
    ("layers", "cause"),
    [
        ([TIME_MIXING, TIME_MIXING | {"values_from": 1}], "reads layer 1, which is not before layer 1"),
        ([{"kind": "attention", "num_heads": 3}, TIME_MIXING | {"values_from": 0}], "publishes nothing"),
        ([TIME_MIXING, *2 * [TIME_MIXING | {"values_from": 1}]], "reads layer 1, which is not before layer 1"),
        ([TIME_MIXING, TIME_MIXING | {"values_from": 0}, TIME_MIXING | {"values_from": 1}], "publishes nothing"),
    ],
)
def test_values_are_read_of_an_earlier_layer_that_leaves_some(layers: list[dict[str, Any]], cause: str) -> None:
    data = model("rwkv7").dump()
    block = data["layers"][0]["block"]
    with pytest.raises(SpecError, match=cause) as error:
        archetype.load_spec(data | {"layers": [block | {"mixer": mixer} for mixer in layers]})
    assert str(error.value).startswith("layers[")


# hyper-connections


def plain_and_streams(streams: int, dynamic: bool) -> tuple[nn.Module, nn.Module]:
    """A model of pre-norm blocks, and one of streams with the same weights, whose own are as they begin.

    The last norm reads the sum of the streams, which is larger by their number, and so is its epsilon.
    """
    norms = [{"kind": "rms", "eps": 1e-5 * factor} for factor in (1, streams**2)]
    residual = {"kind": "hyper_connections", "num_streams": streams, "dynamic": dynamic}
    plain = randomize(build(model("hyper_connections", residual={"kind": "sum"}, final_norm=norms[0])))
    other = build(model("hyper_connections", residual=residual, final_norm=norms[1])).eval()
    own = {name: tensor for name, tensor in other.state_dict().items() if "_residual." in name}
    other.load_state_dict(plain.state_dict() | own)
    return plain.requires_grad_(False), other.requires_grad_(False)


TOKENS = torch.randint(31, (2, 16), generator=torch.Generator().manual_seed(2))


def test_one_stream_of_weight_one_is_pre_norm_to_the_bit() -> None:
    plain, streams = plain_and_streams(1, dynamic=False)
    assert torch.equal(streams(TOKENS).logits, plain(TOKENS).logits)
    streams.blocks[1].mixer_residual.static_beta.fill_(1.01)
    assert distance(streams(TOKENS).logits, plain(TOKENS).logits) > WRONG


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_equal_streams_as_they_begin_are_pre_norm(count: int, dynamic: bool) -> None:
    """Each content reads one of them and writes to all; at the end they are summed, which the last norm takes away."""
    plain, streams = plain_and_streams(count, dynamic)
    expected = plain(TOKENS).logits
    assert distance(streams(TOKENS).logits, expected) < 1e-6
    residual = streams.blocks[1].feedforward_residual
    assert residual.static_alpha[:, 0].argmax() == 3 % count
    residual.static_beta[0] = 1.5
    assert distance(streams(TOKENS).logits, expected) > WRONG


def test_streams_are_mixed_as_the_paper_says() -> None:
    """Algorithm 2 of Zhu 2024, of one content that gives twice what it reads."""
    load("hyper_connections")
    residual = spec.Residual.kinds["hyper_connections"](num_streams=3)
    content = randomize(module_class(residual)(residual, Place(D)).double()).requires_grad_(False)
    streams = torch.randn(2, T, 3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    context = ForwardContext.of(X)
    ours = content.write(streams, 2 * content.read(streams, context), context)
    assert distance(ours, one_content(content, streams)) < EXACT
    content.dynamic_beta.mul_(1.5)
    assert distance(ours, one_content(content, streams)) > WRONG


def one_content(content: Any, streams: Tensor) -> Tensor:
    outputs, norm = torch.zeros_like(streams), content.norm
    for row, t in ((row, t) for row in range(len(streams)) for t in range(T)):
        h, n = streams[row, t], streams.shape[2]
        normed = (h - h.mean(1, keepdim=True)) / (h.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
        normed = normed * norm.weight + norm.bias
        alpha = torch.tanh(normed @ content.dynamic_alpha) * content.alpha_scale + content.static_alpha
        beta = torch.tanh(normed @ content.dynamic_beta) * content.beta_scale + content.static_beta
        read = sum(alpha[stream, 0] * h[stream] for stream in range(n))
        for stream in range(n):
            mixed = sum(alpha[other, 1 + stream] * h[other] for other in range(n))
            outputs[row, t, stream] = mixed + beta[stream] * 2 * read
    return outputs


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_products_of_streams_are_counted(dynamic: bool) -> None:
    load("hyper_connections")
    residual = spec.Residual.kinds["hyper_connections"](num_streams=3, dynamic=dynamic)
    content, context = module_class(residual)(residual, Place(D)).double(), ForwardContext.of(X)
    streams = torch.zeros(2, T, 3, D, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        content.write(streams, content.read(streams, context), context)
    with_vector = 2 * 2 * (2 * T) * 3 * D if dynamic else 0  # reading and writing make beta, which torch does not count
    counted = ResidualCost.of(residual, symbol("D", D)).flops(symbol("T", 2 * T))
    assert counter.get_total_flops() + with_vector == counted.value
