"""One token of latent attention on a full state: looking at the latents, against expanding them.

    python -m benchmarks.latent

The sizes of one layer of DeepSeek-V2-Lite, batch 1, float32.
"""

import argparse
import statistics
import time

import torch
from torch import nn

from archetype import spec
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.latent_attention.module import LatentAttention
from benchmarks.machine import heading

D_MODEL = 2048
SIZES = {"num_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


class Expanding(spec.LatentAttention):
    """The same attention, never absorbed."""

    def absorbs(self, queries: int, keys: int) -> bool:
        """Never."""
        return False


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    print(heading("python -m benchmarks.latent"))
    absorbed = LatentAttention(spec.LatentAttention(**SIZES), Place(D_MODEL, causal=True)).eval()
    for parameter in absorbed.parameters():
        nn.init.normal_(parameter, std=0.02)
    expanding = LatentAttention(Expanding(**SIZES), Place(D_MODEL, causal=True)).eval()
    expanding.load_state_dict(absorbed.state_dict())
    seconds = paired({"absorbed": absorbed, "expanding": expanding}, chosen.length, chosen.rounds)
    for name, taken in seconds.items():
        print(f"{name:<12}{1e3 * taken:>10.2f} ms a token")
    print(f"{'ratio':<12}{seconds['expanding'] / seconds['absorbed']:>10.1f} x, on a state of {chosen.length} tokens")


@torch.inference_mode()
def paired(parts: dict[str, LatentAttention], length: int, rounds: int) -> dict[str, float]:
    """Median seconds of one more token, the parts taking turns, each on a state of its own."""
    token, lengths = torch.randn(1, 1, D_MODEL), torch.tensor([length - 1])
    states = {name: part.new_state(1, length, torch.float32, token.device) for name, part in parts.items()}
    for state in states.values():
        torch.manual_seed(1)
        state.keys.normal_()
        state.values.normal_()
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    results = [part(token, ForwardContext.of(token, lengths), states[name]) for name, part in parts.items()]
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
    for _ in range(rounds):
        for name, part in parts.items():
            started = time.perf_counter()
            part(token, ForwardContext.of(token, lengths), states[name])
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    main()
