"""A plain PyTorch loop (forward, backward, clipping, AdamW) over models of seven kinds, in transformers and Archetype.

    python -m benchmarks.plain_loop --batch 4 --length 512 --dtype float32

Each model is made by transformers with random weights and about 15 M parameters, saved, and loaded by Archetype. The
three take turns with the same loop: transformers, ours with torch's operations alone (`plain_operations`), and ours as
every loop gets it. `difference` is that of the logits, as a share of the largest.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

import archetype
from archetype.native.kernels import plain_operations
from benchmarks.machine import heading
from benchmarks.training_step import paired

COMMON = {"vocab_size": 4096, "hidden_size": 384, "num_hidden_layers": 6, "max_position_embeddings": 1024}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64}
KINDS: dict[str, dict[str, object]] = {
    "llama": {"intermediate_size": 1024, **HEADS},
    "gpt2": {"n_embd": 384, "n_layer": 6, "n_head": 6, "n_positions": 1024, "attn_pdrop": 0.0,
             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0},
    "gemma3_text": {"intermediate_size": 1024, "sliding_window": 128, "query_pre_attn_scalar": 64, **HEADS},
    "mixtral": {"intermediate_size": 384, "num_local_experts": 8, "num_experts_per_tok": 2, **HEADS},
    "deepseek_v2": {
        "intermediate_size": 1024, "moe_intermediate_size": 256, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 128, "q_lora_rank": None,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "num_attention_heads": 6,
        "num_key_value_heads": 6, "n_group": 1, "topk_group": 1,
    },
    "qwen3_next": {
        "intermediate_size": 1024, "moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 256, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64, **HEADS,
    },
    "mamba2": {"num_heads": 12, "head_dim": 64, "state_size": 64, "n_groups": 1, "expand": 2, "chunk_size": 128},
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16 is by autocast")
    parser.add_argument("--only", help="one kind")
    parser.add_argument("--rounds", type=int, default=6)
    chosen = parser.parse_args()
    command = f"--batch {chosen.batch} --length {chosen.length} --dtype {chosen.dtype}"
    print(heading(f"python -m benchmarks.plain_loop {command}", "transformers"))
    print(f"{'':<14}{'transformers':>14}{'plain':>10}{'ours':>10}  tokens/s{'plain':>9}{'ours':>7} x{'difference':>13}")
    for name in KINDS:
        if chosen.only in (None, name):
            measure(name, chosen.batch, chosen.length, chosen.rounds, chosen.dtype)


def measure(name: str, batch: int, length: int, rounds: int, dtype: str) -> None:
    """Print the row of one kind of model."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **(COMMON | KINDS[name]))
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa" if name != "mamba2" else None).train()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder) / "model")
        ours = archetype.load(Path(folder) / "model").model.train()
    tokens = torch.randint(3, 4000, (batch, length + 1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:].flatten()

    def logits_of(model: nn.Module) -> torch.Tensor:
        logits: torch.Tensor = model(inputs).logits
        return logits

    def step(model: nn.Module, is_plain: bool = False) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def take() -> None:
            with plain_operations() if is_plain else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                    logits = logits_of(model)
                cross_entropy(logits.flatten(0, 1).float(), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return take

    with torch.inference_mode():
        expected = logits_of(theirs)
        difference = float((logits_of(ours) - expected).abs().max() / expected.abs().max())
    steps = {"theirs": step(theirs), "plain": step(ours, is_plain=True), "ours": step(ours)}
    rates = {which: batch * length / seconds for which, seconds in paired(steps, rounds).items()}
    ratios = rates["plain"] / rates["theirs"], rates["ours"] / rates["theirs"]
    print(
        f"{name:<14}{rates['theirs']:>14,.0f}{rates['plain']:>10,.0f}{rates['ours']:>10,.0f}"
        f"{ratios[0]:>19.2f}{ratios[1]:>7.2f}{difference:>15.1e}",
        flush=True,
    )


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
