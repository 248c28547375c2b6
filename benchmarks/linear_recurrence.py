"""Training and decoding of linear recurrences compared with PyTorch forms of other libraries, in turns.

python -m benchmarks.linear_recurrence --length 512 --d-model 256
python -m benchmarks.linear_recurrence --processor-time          # of one thread, on a machine that others use, too

The peer is transformers' class, and for mixers that it does not have, our mixer around a naive function of
flash-linear-attention (`make fla`; without it, ours is timed alone). One more token is computed by PyTorch's operations
one by one, and as generation computes it, recorded.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    KimiLinearConfig,
    Mamba2Config,
    MambaConfig,
    MiniMaxConfig,
    PreTrainedConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
    xLSTMConfig,
)
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.minimax.modeling_minimax import MiniMaxCache, MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock
from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention
from transformers.models.xlstm.modeling_xlstm import xLSTMLayer

from archetype import spec
from archetype.models.initialization import initialize
from archetype.native.library import library
from archetype.native.recorder import Recorder
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_mixer
from benchmarks import fla_forms
from benchmarks.machine import heading

ROUNDS, HEAD = 7, 64  # timed turns, and the width of a head
CPU = torch.device("cpu")
Peer = tuple[nn.Module, Callable[[Tensor, Any], Any], Any]  # module, (x, cache) -> output, cache (None: it has none)
Pair = tuple[float, float | None]  # seconds of ours, and of theirs


def peers(d_model: int, batch: int, length: int) -> dict[str, tuple[spec.Mixer, Callable[[], Peer] | None]]:
    """Return each mixer of a model of this width, and how the peer's module for it is made if there is one."""
    heads = d_model // HEAD
    common: dict[str, Any] = {
        "hidden_size": d_model, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": HEAD,
    }  # fmt: skip

    def cached(module: nn.Module, config: PreTrainedConfig, name: str) -> Peer:
        return module, lambda x, cache: module(x, **{name: cache}), DynamicCache(config=config)

    def delta_net() -> Peer:
        config = Qwen3NextConfig(
            **common, linear_num_value_heads=heads, linear_num_key_heads=heads, linear_key_head_dim=HEAD,
            linear_value_head_dim=HEAD,
        )  # fmt: skip
        return cached(Qwen3NextGatedDeltaNet(config, 0), config, "cache")

    def delta_attention() -> Peer:
        config = KimiLinearConfig(**common, linear_head_dim=HEAD, linear_num_heads=heads)
        return cached(KimiLinearDeltaAttention(config, 0), config, "cache")

    def lightning() -> Peer:
        module = MiniMaxLightningAttention(MiniMaxConfig(**common), 0)
        return module, lambda x, cache: module(x, None, None, cache=cache)[0], MiniMaxCache()

    def mamba2() -> Peer:
        config = Mamba2Config(
            hidden_size=d_model, num_heads=2 * heads, head_dim=HEAD, state_size=128, n_groups=1, num_hidden_layers=1
        )
        return cached(Mamba2Mixer(config, 0), config, "cache")

    def mamba() -> Peer:
        config = MambaConfig(hidden_size=d_model, num_hidden_layers=1)
        return cached(MambaMixer(config, 0), config, "cache")

    def rg_lru() -> Peer:
        module = RecurrentGemmaRecurrentBlock(
            RecurrentGemmaConfig(hidden_size=d_model, lru_width=d_model, num_attention_heads=heads), 0
        )
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.1)

        def run(x: Tensor, is_cached: Any) -> Tensor:
            # its state is held by the module, and a pass without a cache clears it
            held = module.conv1d_state, module.rg_lru.recurrent_states
            positions = torch.arange(x.shape[1]) if x.shape[1] > 1 else torch.ones(1)
            y: Tensor = module(x, positions.expand(x.shape[:2]), None, use_cache=bool(is_cached))[0]
            if not is_cached:
                module.conv1d_state, module.rg_lru.recurrent_states = held
            return y

        return module, run, True

    def rwkv4() -> Peer:
        module = RwkvSelfAttention(RwkvConfig(hidden_size=d_model, num_hidden_layers=1))
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.1)
        state = [torch.full((batch, d_model, 1), fill) for fill in (0.0, 0.0, 0.0, 0.0, -1e30)]
        return module, lambda x, state: module(x, state=state, use_cache=state is not None)[0], state

    def mlstm() -> Peer:
        config = xLSTMConfig(hidden_size=d_model, num_heads=heads, autocast_kernel_dtype="float32")
        module = xLSTMLayer(config)

        def run(x: Tensor, states: list[Any] | None) -> Tensor:
            y, state = module(x, states[-1] if states else None)
            if states is not None:
                states[:] = [state]
            return y  # type: ignore[no-any-return]

        return module, run, []

    def fla(mixer: spec.Mixer, name: str, form: Any) -> tuple[spec.Mixer, Callable[[], Peer] | None]:
        make = partial(fla_forms.form_of, mixer, d_model, batch, length, (name, form))
        return mixer, make if fla_forms.installed() else None

    delta: dict[str, Any] = {"num_heads": heads, "head_dim": HEAD, "v_head_dim": HEAD}
    channels: dict[str, Any] = {"decay": "channel", "decay_rank": HEAD, "gate": "sigmoid", "gate_rank": HEAD}
    return {
        "gated delta net": (spec.GatedDeltaNet(**delta), delta_net),
        "delta attention": (spec.GatedDeltaNet(**delta, **channels), delta_attention),
        "lightning": (
            spec.LinearAttention(
                num_heads=heads, feature_map="silu", value_activation="silu", scale=1.0, norm_over="all",
                gate="sigmoid", decay=spec.FixedDecay(form="alibi"),
            ),
            lightning,
        ),
        "mamba": (spec.Mamba(), mamba),
        "mamba2": (spec.Mamba2(num_heads=2 * heads), mamba2),
        "mlstm": (spec.MLSTM(num_heads=heads), mlstm),
        "rg_lru": (spec.RGLRU(num_heads=heads), rg_lru),
        "rwkv4": (spec.RWKV4(), rwkv4),
        # transformers' rows come before these
        "rwkv7": fla(spec.RWKV7(num_heads=heads), "read_chunks", fla_forms.removal),
        "retention": fla(
            spec.LinearAttention(
                num_heads=heads, v_head_dim=2 * HEAD, position=spec.Rotary(), decay=spec.FixedDecay(), gate="silu"
            ), "read_chunks", fla_forms.retention,
        ),
        "gla": fla(
            spec.LinearAttention(
                num_heads=heads, head_dim=HEAD // 2, v_head_dim=HEAD, decay=spec.ChannelDecay(rank=16), gate="silu"
            ), "read_chunks", fla_forms.gla,
        ),
        "hgrn2": fla(
            spec.LinearAttention(
                num_heads=heads, feature_map="silu", norm_over="all",
                decay=spec.ChannelDecay(temperature=1.0, bias=False, gives_keys=True),
            ), "read_chunks", fla_forms.gla,
        ),
        "mamba3": fla(spec.Mamba3(num_heads=2 * heads), "linear_chunk", fla_forms.simple_gla),
        "delta net": fla(spec.GatedDeltaNet(**delta, decay="none"), "read_chunks", fla_forms.delta_rule),
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--mixers", nargs="*", metavar="NAME", help="names of rows (absent: all)")
    parser.add_argument("--processor-time", action="store_true", help="measure the processor time of one thread")
    chosen = parser.parse_args()
    torch.set_num_threads(1 if chosen.processor_time else 2)
    clock = time.process_time if chosen.processor_time else time.perf_counter
    command = f"--length {chosen.length} --d-model {chosen.d_model} --batch {chosen.batch}"
    command += " --processor-time" * chosen.processor_time
    print(heading(f"python -m benchmarks.linear_recurrence {command}", "transformers"))
    print(f"flash-linear-attention {fla_forms.installed()}\n")
    columns = ("training", "peer", "ratio", "decoding", "peer", "ratio", "recorded", "ratio")
    print(f"{'':<16}" + "".join(f"{column:>14}" for column in columns))
    for name, (mixer, make) in peers(chosen.d_model, chosen.batch, chosen.length).items():
        if chosen.mixers and name not in chosen.mixers:
            continue
        print(f"{name:<16}" + "".join(
            f"{cell:>14}" for cell in cells(*measured(mixer, make, chosen.d_model, chosen.batch, chosen.length, clock))
        ), flush=True)  # fmt: skip


def cells(training: Pair, decoding: Pair, recorded: Pair) -> list[str]:
    """Return the columns of a row."""
    texts = []
    for ours, theirs in (training, decoding, recorded):
        texts += [f"{1e3 * ours:.2f} ms"]
        texts += ["-", "-"] if theirs is None else [f"{1e3 * theirs:.2f} ms", f"{theirs / ours:.2f} x"]
    return [*texts[:7], texts[8]]  # the recorded step is beside the same of theirs


def measured(
    mixer: spec.Mixer,
    make: Callable[[], Peer] | None,
    d_model: int,
    batch: int,
    length: int,
    clock: Callable[[], float],
) -> tuple[Pair, Pair, Pair]:
    """Return median seconds of a training step, one more token and a recorded one; ours and theirs take turns."""
    module: Any = build_mixer(mixer, Place(d_model, causal=True, layer=0))
    initialize(module, spec.NormalInitialization(), 1, seed=0)
    text, state = torch.randn(batch, length, d_model), module.new_state(batch, length + 1, torch.float32, CPU)
    after = ForwardContext.of(text[:, :1], torch.full((batch,), length))  # computed once for all layers of a pass

    def step(x: Tensor) -> Tensor:
        y: Tensor = module(x, after, state)
        return y

    runs: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None]] = [
        (lambda x: module(x, ForwardContext.of(x)), step)
    ]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of kernels for GPU that are not installed
        module(text, ForwardContext.of(text), state)
        if make is not None:
            their_module, run, cache = make()
            assert their_module.training
            if cache is not None:
                run(text, cache)
            runs.append((lambda x: run(x, None), None if cache is None else lambda x: run(x, cache)))
    replay = recorded(module, text[:, :1].clone(), state, length)
    seconds: list[tuple[list[float], list[float]]] = [([], []) for _ in runs]
    replayed = []
    for turn in range(ROUNDS + 1):
        for times, (train, decode) in zip(seconds, runs, strict=True):
            trained = timed(clock, lambda train=train: train(text.clone().requires_grad_()).sum().backward())  # type: ignore[misc]
            decoded = None
            if decode is not None:
                with torch.no_grad():
                    decoded = timed(clock, lambda decode=decode: decode(text[:, :1]))  # type: ignore[misc]
            if turn:  # the first warms up
                times[0].append(trained)
                times[1].extend([] if decoded is None else [decoded])
        replayed.append(timed(clock, replay))
    ours, *others = [[statistics.median(times) if times else None for times in of_one] for of_one in seconds]
    theirs = others[0] if others else [None, None]
    assert ours[0] is not None and ours[1] is not None
    return (ours[0], theirs[0]), (ours[1], theirs[1]), (statistics.median(replayed[1:]), theirs[1])


@torch.inference_mode()
def recorded(module: nn.Module, x: Tensor, state: LayerState, length: int) -> Callable[[], None]:
    """Return the replay of one more token, as `DecodeStep` records the layers of a model."""
    kernels, threads = library(), torch.get_num_threads()
    assert kernels is not None
    lengths, buffers = torch.full((len(x),), length), [*state.tensors()]
    with Recorder(kernels, [x, lengths, *(buffer for _, _, buffer in buffers)], threads) as recorder:
        y = module(x, ForwardContext.of(x, lengths, kernels=recorder), state)
        for layer, name, buffer in buffers:
            if (after := getattr(layer, name)) is not buffer:
                buffer.copy_(after)
                setattr(layer, name, buffer)
    replay = recorder.finish([y])
    return lambda: replay(threads)


def timed(clock: Callable[[], float], run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = clock()
    run()
    return clock() - started


if __name__ == "__main__":
    main()
