"""Attention by functions that are registered with transformers, as vLLM's transformers backend calls models."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import archetype
from archetype import hf
from archetype.errors import SpecError
from archetype.hf.registered import names_of, parallel_plans
from archetype.models.spec import ModelSpec
from archetype.nn.context import ForwardContext
from archetype.spec.edit import assign
from tests.helpers.examples import every
from tests.helpers.weights import distance, randomize

EXACT, WRONG = 1e-5, 1e-3
NAME, MASKED = "counting", "counting_with_masks"
TINY = [name for name in archetype.presets() if name.endswith("-tiny")]
PLAIN = [name for name in TINY if names_of(archetype.load_spec(name))]


class Eager:
    """Attention to the keys of this call, or to those that a cache of the layer keeps, which counts its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, Any]]] = []
        self.is_wrong = False  # whether positions are exchanged, for controls

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        attention_instances: dict[int, Any] | None = None,
        requests: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        self.calls.append((module.layer_idx, {"scaling": scaling, "mask": attention_mask}))
        if attention_instances is not None:
            keys, values = attention_instances.setdefault(module.layer_idx, [key[:, :, :0], value[:, :, :0]])
            attention_instances[module.layer_idx] = [torch.cat((keys, key), 2), torch.cat((values, value), 2)]
            key, value = attention_instances[module.layer_idx]
        key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
        scores = query @ key.transpose(2, 3) * scaling
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        if attention_mask is None:
            assert module.is_causal
            first = key.shape[2] - query.shape[2]
            behind = first + torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
            attention_mask = (behind >= 0) & (behind < (sliding_window or behind.numel()))
            if requests is not None:
                attention_mask = attention_mask & (requests[:, None] == requests)
        scores = scores.masked_fill(~attention_mask, -1e30)
        y = (scores.softmax(-1) @ value).transpose(1, 2).contiguous()
        return (y.flip(1) if self.is_wrong else y), None


@pytest.fixture
def eager() -> Iterator[Eager]:
    function = Eager()
    for name in (NAME, MASKED):
        ALL_ATTENTION_FUNCTIONS.register(name, function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(MASKED, sdpa_mask)
    yield function
    for name in (NAME, MASKED):
        ALL_ATTENTION_FUNCTIONS._global_mapping.pop(name)
    ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.pop(MASKED)


def pair(name: str | ModelSpec, implementation: str = NAME, cls: Any = hf.ArchetypeForCausalLM) -> tuple[Any, Any]:
    """The same model with Archetype's attention, and with a registered function."""
    described = archetype.load_spec(name) if isinstance(name, str) else name
    own = randomize(cls(hf.ArchetypeConfig(spec=described, pad_token_id=0))).eval()
    theirs = cls(hf.ArchetypeConfig(spec=described, pad_token_id=0, attn_implementation=implementation)).eval()
    theirs.load_state_dict(own.state_dict())
    return own, theirs


def tokens_of(model: Any, shape: tuple[int, int] = (2, 40)) -> Tensor:
    return torch.randint(1, model.config.vocab_size, shape)


@pytest.mark.parametrize("name", every(6, PLAIN))
@torch.no_grad()
def test_a_registered_function_is_called_once_a_layer_and_gives_the_same_logits(name: str, eager: Eager) -> None:
    own, theirs = pair(name)
    tokens = tokens_of(own)
    expected = own(tokens).logits
    assert eager.calls == []
    assert distance(theirs(tokens, use_cache=False).logits, expected) < EXACT
    assert [layer for layer, _ in eager.calls] == list(range(own.config.num_hidden_layers))
    assert all(said["scaling"] > 0 and said["mask"] is None for _, said in eager.calls)
    eager.is_wrong = True
    assert distance(theirs(tokens).logits, expected) > WRONG


@torch.no_grad()
def test_requests_that_share_one_row_have_positions_of_their_own_and_grow_token_by_token(eager: Eager) -> None:
    """As vLLM calls a model: all tokens in one row, positions of each request, and caches that only it knows."""
    own, theirs = pair("mistral-tiny", cls=hf.ArchetypeModel)
    assert type(theirs).is_backend_compatible() and theirs.get_decoder() is theirs
    one, other = tokens_of(own, (1, 30)), tokens_of(own, (1, 17))
    row, positions = torch.cat((one, other), 1), torch.cat((torch.arange(30), torch.arange(17)))[None]
    requests = torch.tensor([0] * 30 + [1] * 17)
    hidden = theirs(
        input_ids=row, inputs_embeds=None, use_cache=False, position_ids=positions, return_dict=False, requests=requests
    )[0]
    alone = torch.cat([own(x).last_hidden_state for x in (one, other)], 1)
    assert distance(hidden, alone) < EXACT
    caches: dict[int, Any] = {}
    steps = [
        theirs(input_ids=one[:, t : t + 1], position_ids=torch.tensor([[t]]), attention_instances=caches)[0]
        for t in range(30)
    ]
    assert distance(torch.cat(steps, 1), alone[:, :30]) < EXACT and len(caches) == own.config.num_hidden_layers


@torch.no_grad()
def test_masks_of_transformers_are_passed_where_the_implementation_has_them(eager: Eager) -> None:
    own, theirs = pair("gemma2-tiny", MASKED)
    tokens, mask = tokens_of(own), torch.ones(2, 40, dtype=torch.long)
    mask[0, :11] = 0  # on the left
    expected, result = own(tokens, attention_mask=mask).logits, theirs(tokens, attention_mask=mask).logits
    assert distance(result[mask == 1], expected[mask == 1]) < EXACT
    masks = [said["mask"] for _, said in eager.calls]
    assert all(one is not None for one in masks) and not torch.equal(masks[0], masks[1])  # one has a window


@torch.no_grad()
def test_generating_and_training_use_the_function(eager: Eager) -> None:
    own, theirs = pair("llama-tiny")
    tokens = tokens_of(own, (2, 6))
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    assert torch.equal(theirs.generate(tokens, **options), own.generate(tokens, **options))
    assert len(eager.calls) == 8 * own.config.num_hidden_layers
    with torch.enable_grad():
        losses = [model.train()(tokens, labels=tokens).loss for model in (own, theirs)]
        gradients = [torch.autograd.grad(losses[i], list(model.parameters())) for i, model in enumerate((own, theirs))]
    assert all(distance(*both) < EXACT for both in zip(*gradients, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("layers[1].mixer=mamba",), "layers[1].mixer: mamba is not attention to keys and values of its own; "),
        (
            ("layers[0].mixer.sinks=true",),
            "layers[0].mixer.sinks: is not supported by the attention functions of other",
        ),
        (("layers[1].mixer.num_heads=2",), "layers[1].mixer: has heads or a softcap unlike those of the first layer; "),
        (("layers[0].mixer.pattern={kind: strided, stride: 4}",), "layers[0].mixer.pattern: is not supported by the"),
        (("layers[1].mixer.keys_from=0",), "layers[1].mixer.keys_from: is not supported by the attention functions of"),
    ],
)
def test_what_no_registered_function_computes_is_refused(changes: tuple[str, ...], message: str, eager: Eager) -> None:
    described = assign(archetype.load_spec("llama-tiny"), list(changes))
    config = hf.ArchetypeConfig(spec=described, attn_implementation=NAME)
    with pytest.raises(SpecError) as caught:
        transformers.AutoModel.from_config(config)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)
    plain = hf.ArchetypeModel(hf.ArchetypeConfig(spec=described))  # Archetype's own attention computes it
    assert plain.config.base_model_tp_plan is None and "head_dim" not in vars(plain.config)
    with pytest.raises(SpecError, match="cache: is not read by a registered attention function"):
        pair("llama-tiny")[1](torch.ones(1, 2, dtype=torch.long), cache=hf.cache.ArchetypeCache())


def test_a_configuration_says_what_a_program_that_allocates_caches_reads() -> None:
    config = hf.ArchetypeConfig(spec=archetype.load_spec("gemma2-tiny"))
    mixers: list[Any] = [block.mixer for block in config.architecture.stacks[0].layers]
    sizes = mixers[0].sizes(config.hidden_size)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == sizes[:3]
    windows = [mixer.attention_call(64, "").window for mixer in mixers]
    assert config.layer_types == ["sliding_attention" if window else "full_attention" for window in windows]
    assert config.sliding_window in windows and config.attn_logit_softcapping == mixers[0].softcap
    assert config.final_logit_softcapping == config.architecture.head.softcap and config.tie_word_embeddings
    assert (
        not {"head_dim", "layer_types", "logit_scale"} & config.to_dict().keys()
    )  # they follow from the specification


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
@torch.no_grad()
def test_matrices_split_by_the_tensor_plan_add_up(name: str, eager: Eager) -> None:
    own, theirs = pair(name, cls=hf.ArchetypeModel)
    plan = theirs.tp_plan
    assert plan["network.blocks.*.mixer.q"] == "colwise" and plan["network.blocks.*.mixer.o"] == "rowwise"
    block, x = theirs.network.blocks[0], torch.randn(1, 5, own.config.hidden_size)
    for content in ("mixer", "feedforward"):
        results = []
        for rank in (None, 0, 1):
            module = getattr(pair(name, cls=hf.ArchetypeModel)[1].network.blocks[0], content)
            module.load_state_dict(getattr(block, content).state_dict())
            if rank is not None:
                split(module, f"network.blocks.*.{content}", plan, rank)
            context = ForwardContext.of(x)
            context.attend = theirs.registered_attention()._function(x, None, context.positions, {})
            results.append(module(x, context))
        whole, *shares = results
        assert distance(sum(shares), whole) < EXACT and distance(shares[0], whole) > WRONG


def split(module: nn.Module, prefix: str, plan: dict[str, str], rank: int) -> None:
    """Keep the half of each matrix that the process of a rank has."""
    for path, linear in module.named_modules():
        style = plan.get(f"{prefix}.{path}")
        if style is not None:
            dim = ("colwise", "rowwise").index(style)
            linear.weight = nn.Parameter(linear.weight.chunk(2, dim)[rank])
            if linear.bias is not None and (style == "colwise" or rank == 1):
                bias = linear.bias.chunk(2)[rank] if style == "colwise" else torch.zeros_like(linear.bias)
                linear.bias = nn.Parameter(bias)


@torch.no_grad()
def test_stages_split_by_the_pipeline_plan_hand_over_vectors(eager: Eager) -> None:
    own, _ = pair("llama-tiny", cls=hf.ArchetypeModel)
    tokens = tokens_of(own)
    assert list(own.pp_plan) == ["network.embedding", "network.blocks", "network.final_norm"]
    stages = [pair("llama-tiny", cls=hf.ArchetypeModel)[1] for _ in range(2)]
    for rank, stage in enumerate(stages):
        stage.load_state_dict(own.state_dict())
        stage.network.blocks[1 - rank] = nn.Identity()
        setattr(stage.network, "final_norm" if rank == 0 else "embedding", nn.Identity())
    # as vLLM's layers that are missing from a stage: they return their first argument
    for module in (stages[0].network.blocks[1], stages[1].network.blocks[0], stages[0].network.final_norm):
        module.forward = lambda x, *rest: x
    between = stages[0](input_ids=tokens)[0]
    assert distance(stages[1](inputs_embeds=between)[0], own(tokens)[0]) < EXACT


def test_plans_are_left_out_where_they_are_not_plain() -> None:
    for name, has_tensor_plan in (("olmo2-tiny", False), ("llama-tiny", True)):
        described = archetype.load_spec(name)
        network = hf.ArchetypeModel(hf.ArchetypeConfig(spec=described)).network
        by_matrices, by_layers = parallel_plans(described, network)
        assert (by_matrices is not None) == has_tensor_plan and by_layers is not None
