"""Latent attention: its absorbed form equals its plain one; when its state is smaller than that of grouped heads."""

from typing import Any

import torch

from archetype import families
from archetype.estimate.report import cost_report
from archetype.families.index import preset_facts
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.nn.context import ForwardContext
from archetype.parts.attention.spec import Attention
from archetype.parts.latent_attention.spec import DirectQuery, LatentAttention, LowRankQuery
from archetype.studies.outcome import Control, Outcome
from archetype.studies.registry import check
from claims.checks.window import decoded
from claims.small_models import EXACT, WRONG, block, decoder, normal, random_model, random_tokens, relative_error

SIZES: dict[str, Any] = {
    "num_heads": 4, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
}  # fmt: skip
DEEPSEEK = 512 + 64  # C + R of DeepSeek-V2


class Plain(LatentAttention):
    """Latents are always expanded to keys and values."""

    def absorbs(self, queries: int, keys: int) -> bool:
        return False


class Absorbed(LatentAttention):
    """Queries always attend to the latents themselves."""

    def absorbs(self, queries: int, keys: int) -> bool:
        return True


@check("latent_attention.absorbed", claim=8, part="a")
def absorbed(quick: bool) -> Outcome:
    """The absorbed form gives the plain form's logits, with direct and low-rank queries, whole and in chunks."""
    length, errors = 16 if quick else 60, dict.fromkeys(EXACT, 0.0)
    for query in (DirectQuery(), LowRankQuery(rank=7)):
        for dtype in EXACT:
            mixers = [kind(**SIZES, query=query) for kind in (Plain, Absorbed)]
            models = [random_model(decoder(*[block(mixer=mixer)] * 2), dtype) for mixer in mixers]
            tokens = random_tokens(models[0].spec, 2, length)
            whole = models[0](tokens).logits
            forms = [models[1](tokens).logits, *(decoded(model, tokens, step) for model in models for step in (1, 5))]
            errors[dtype] = max(errors[dtype], *(relative_error(logits, whole) for logits in forms))
    return Outcome(
        all(error <= EXACT[dtype] for dtype, error in errors.items()),
        f"logits of both forms, with direct and low-rank queries, of whole texts, of chunks and token by token differ "
        f"by {errors[torch.float64]:.1e} in float64 and {errors[torch.float32]:.1e} in float32 over {length} tokens",
        {"float64": errors[torch.float64], "float32": errors[torch.float32]},
        (Control("rotating the expanded key, and absorbing as if it were not", rotated_key_error(), WRONG),),
    )


def rotated_key_error() -> float:
    """Return the error if a rotation lies between the query and the matrix that is absorbed into it."""
    mixer = LatentAttention(**SIZES | {"qk_nope_head_dim": 4})
    layer = random_model(decoder(block(mixer=mixer))).blocks[0].mixer
    x = normal(1, 12, 16, seed=1)
    context = ForwardContext.of(x)
    (plain, _), latents = layer._queries(x, context), layer._latents(x, context)
    key_up, _ = layer.expansions
    keys = torch.einsum("bsc,hpc->bhsp", latents[0][:, 0], key_up)  # (B, H, S, P)
    turned, turned_keys = (layer.rotary(part, context.positions, context) for part in (plain, keys))
    scores = turned @ turned_keys.transpose(2, 3)
    wrong = torch.einsum("bhtp,hpc->bhtc", turned, key_up) @ latents[0].transpose(2, 3)
    return relative_error(wrong, scores)


@check("latent_attention.state", claim=8, part="b", kind="analytic")
def state(quick: bool) -> Outcome:
    """A latent takes C + R numbers a token and layer, fewer than grouped heads exactly if C + R < 2 K P."""
    model = random_model(decoder(*[block(mixer=LatentAttention(**SIZES))] * 3), torch.float32)
    per_token = 3 * (SIZES["kv_lora_rank"] + SIZES["qk_rope_head_dim"]) * 4
    report = cost_report(model.spec, 2, 40, "float32").state["bytes"]
    exact = model.new_state(2, 40).nbytes == report == 2 * 40 * per_token
    published, agree = {}, True
    for name in sorted(preset_facts()):
        shape = families.preset(name)
        if name.endswith("-tiny") or (numbers := _numbers_a_token(shape)) is None:
            continue
        published[name] = numbers
        agree &= cost_report(shape, length=1, dtype="float32").state["bytes"] == 4 * shape.num_layers * numbers
    deepseek = families.preset("deepseek-v2")
    agree &= cost_report(deepseek, length=1, dtype="float32").state["bytes"] == 4 * deepseek.num_layers * DEEPSEEK
    larger = sorted(numbers for numbers in published.values() if numbers > DEEPSEEK)
    smaller = {name: numbers for name, numbers in published.items() if numbers <= DEEPSEEK}
    examples = ", ".join(f"{name} {numbers}" for name, numbers in sorted(smaller.items(), key=lambda item: item[1])[:3])
    return Outcome(
        exact and agree and bool(smaller) and bool(larger),
        f"DeepSeek-V2 keeps {DEEPSEEK} numbers a token and layer; of {len(published)} published shapes {len(larger)} "
        f"keep more ({larger[0]:,} to {larger[-1]:,}) and {len(smaller)} no more: {examples}; allocated as computed",
        {"latent": DEEPSEEK, "shapes_that_keep_more": len(larger), "shapes_that_keep_no_more": len(smaller)}
        | {"grouped_8_of_128": 2 * 8 * 128, "one_of_128": 2 * 128},
        (Control("one head of keys, which the claim calls larger (numbers)", float(DEEPSEEK - 2 * 128), 0.0),),
    )


def _numbers_a_token(model: ModelSpec) -> int | None:
    """Return 2 K P of a published decoder whose layers all have attention of one shape."""
    if not isinstance(model, Decoder):
        return None
    mixers = [layer.mixer for layer in model.layers]
    sizes = [mixer.sizes(model.d_model) for mixer in mixers if isinstance(mixer, Attention)]
    numbers = {2 * size.num_kv_heads * size.head_dim for size in sizes}
    return numbers.pop() if len(numbers) == 1 and len(sizes) == len(mixers) else None
