"""Activations of a traced GPT-2 are those of transformers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import archetype
from archetype.inspection.attention import attention_paths, attention_steps
from archetype.inspection.attribution import attribution_view
from tests.helpers.weights import distance, randomize

EXACT = 1e-5


def test_activations_of_gpt2_are_those_of_transformers(tmp_path: Path) -> None:
    """Hidden states, attention, queries, keys, values, heads, and what each part reads and adds."""
    config = GPT2Config(vocab_size=101, n_positions=32, n_embd=24, n_layer=3, n_head=4, attn_implementation="eager")
    theirs = GPT2LMHeadModel(config)
    randomize(theirs).save_pretrained(tmp_path)
    lm, ids = archetype.load(tmp_path), torch.randint(101, (2, 17), generator=torch.Generator().manual_seed(0))
    trace, seen = lm.trace(ids).record("blocks.*.feedforward.up.out").run(), {}
    for layer, block in enumerate(theirs.transformer.h):
        for name, module in block.named_modules():
            module.register_forward_hook(
                lambda _, args, y, name=f"{layer}.{name}": seen.update({f"{name}.in": args[0], f"{name}.out": y})
            )
    with torch.no_grad():
        expected = theirs(ids, output_hidden_states=True, output_attentions=True)
    pairs = {
        "logits": (trace.logits, expected.logits),
        "embedding": (trace["embedding.out"], expected.hidden_states[0]),
    }
    assert attention_paths(trace) == [f"blocks.{layer}.mixer" for layer in range(3)]
    for layer in range(3):
        mine, its = f"blocks.{layer}", str(layer)
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in seen[f"{its}.attn.c_attn.out"].split(24, -1))
        pairs |= {
            f"{mine} weights": (attention_steps(trace, f"{mine}.mixer").weights, expected.attentions[layer]),
            f"{mine} before": (trace[f"{mine}.in"], expected.hidden_states[layer]),
            f"{mine} q": (trace[f"{mine}.mixer.q"], q),
            f"{mine} k": (trace[f"{mine}.mixer.k"], k),
            f"{mine} v": (trace[f"{mine}.mixer.v"], v),
            f"{mine} heads": (trace[f"{mine}.mixer.heads"].transpose(1, 2).flatten(2), seen[f"{its}.attn.c_proj.in"]),
            f"{mine} mixer reads": (trace[f"{mine}.mixer.in"], seen[f"{its}.ln_1.out"]),
            f"{mine} mixer adds": (trace[f"{mine}.mixer.out"], seen[f"{its}.attn.c_proj.out"]),
            f"{mine} feedforward reads": (trace[f"{mine}.feedforward_norm.out"], seen[f"{its}.ln_2.out"]),
            f"{mine} before the activation": (trace[f"{mine}.feedforward.up.out"], seen[f"{its}.mlp.c_fc.out"]),
            f"{mine} after it": (trace[f"{mine}.feedforward.hidden"], seen[f"{its}.mlp.act.out"]),
            f"{mine} feedforward adds": (trace[f"{mine}.feedforward.out"], seen[f"{its}.mlp.c_proj.out"]),
        }
    pairs["the last norm"] = (trace["final_norm.out"], expected.hidden_states[-1])
    errors = {name: distance(_tensor(ours), _tensor(other)) for name, (ours, other) in pairs.items()}
    assert len(errors) == 39 and max(errors.values()) < EXACT, errors


def test_activations_of_gpt2_are_those_of_transformer_lens(tmp_path: Path) -> None:
    """Of its HookedTransformer; with a head ablated, and a logit by part, as well."""
    lens = pytest.importorskip("transformer_lens", reason="needs transformer_lens 2 (pip install 'transformer_lens<3')")
    from transformer_lens.pretrained.weight_conversions.gpt2 import convert_gpt2_weights

    hf = GPT2LMHeadModel(GPT2Config(vocab_size=101, n_positions=32, n_embd=24, n_layer=3, n_head=4))
    randomize(hf).save_pretrained(tmp_path)
    sizes = {"n_layers": 3, "d_model": 24, "n_ctx": 32, "d_head": 6, "n_heads": 4, "d_mlp": 96, "d_vocab": 101}
    config = lens.HookedTransformerConfig(**sizes, act_fn="gelu_new", normalization_type="LN", device="cpu")
    theirs = lens.HookedTransformer(config).eval()
    theirs.load_state_dict(convert_gpt2_weights(hf, config), strict=False)
    theirs.unembed.b_U.data.zero_()
    lm, ids = archetype.load(tmp_path), torch.randint(101, (2, 17), generator=torch.Generator().manual_seed(0))
    logits, cache = theirs.run_with_cache(ids)
    trace = lm.trace(ids).record("*").run()
    pairs = {
        "logits": (trace.logits, logits),
        "last norm": (trace["final_norm.out"], cache["ln_final.hook_normalized"]),
        "tokens": (trace["embedding.token.out"], cache["hook_embed"]),
        "positions": (trace["embedding.position.out"].expand(2, -1, -1), cache["hook_pos_embed"]),
    }
    names = {
        "in": "hook_resid_pre", "out": "hook_resid_post", "feedforward_norm.in": "hook_resid_mid",
        "mixer.in": "ln1.hook_normalized", "feedforward.in": "ln2.hook_normalized", "mixer.out": "hook_attn_out",
        "feedforward.out": "hook_mlp_out", "feedforward.up.out": "mlp.hook_pre", "feedforward.hidden": "mlp.hook_post",
    }  # fmt: skip
    heads = {"q": "hook_q", "k": "hook_k", "v": "hook_v", "heads": "hook_z"}
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        steps = attention_steps(trace, f"{block}.mixer")
        pairs |= {f"{block}.{ours}": (trace[f"{block}.{ours}"], cache[f"{block}.{its}"]) for ours, its in names.items()}
        for ours, its in heads.items():
            pairs[f"{block}.{ours}"] = trace[f"{block}.mixer.{ours}"].transpose(1, 2), cache[f"{block}.attn.{its}"]
        pairs[f"{block} weights"] = steps.weights, cache[f"{block}.attn.hook_pattern"]
        scores = (part.clamp(min=-50) for part in (steps.masked, cache[f"{block}.attn.hook_attn_scores"]))
        pairs[f"{block} scores"] = tuple(scores)

    def ablate(z: Tensor, hook: object) -> Tensor:
        z[:, :, 1] = 0
        return z

    without = theirs.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.hook_z", ablate)])
    pairs["ablated"] = lm.trace(ids).ablate("blocks.1.mixer", heads=1).run().logits, without
    parts = cache.apply_ln_to_stack(cache.decompose_resid(layer=3), layer=-1)[:, 0, -1] * theirs.ln_final.w
    by_part = parts @ theirs.W_U[:, 5]
    view = attribution_view(trace, str, token=5)
    ours = torch.tensor([part.logit for part in view.contributions[:-1]])
    pairs["by part"] = ours, torch.cat((by_part[:2].sum()[None], by_part[2:]))
    errors = {name: distance(_tensor(mine), _tensor(other)) for name, (mine, other) in pairs.items()}
    assert len(errors) == 51 and max(errors.values()) < EXACT, errors


def _tensor(x: Tensor | None) -> Tensor:
    assert x is not None
    return x.detach()
