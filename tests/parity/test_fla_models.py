"""Folders of flash-linear-attention (fla) are read as its classes compute them, or refused, and written unchanged."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import archetype
from archetype.convert.source import read_hf_spec
from archetype.errors import ArchetypeError
from tests.conftest import ROOT
from tests.helpers.cases import case
from tests.helpers.causal import in_chunks
from tests.helpers.fla import INSTALLED
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance

Case = tuple[str, dict[str, Any] | None]  # a model type and keys
LENGTH, PROMPT = 12, 5
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
RANKS = {"decay_low_rank_dim": 5, "gate_low_rank_dim": 6, "a_low_rank_dim": 4, "v_low_rank_dim": 3}
BASES: dict[str, dict[str, Any]] = {
    "rwkv7": SIZES | RANKS | {"num_hidden_layers": 3, "head_dim": 8},
    "gla": SIZES | {"num_heads": 2},
    "retnet": SIZES | {"num_heads": 2},
    "delta_net": SIZES | {"num_heads": 2},
    "gated_deltanet": SIZES | {"num_heads": 2, "head_dim": 8},
    "kda": SIZES | {"num_heads": 2, "head_dim": 8},
    "transformer": SIZES | {"num_heads": 2},
}
FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "rwkv7, plain kernels": ("rwkv7", {
        "num_hidden_layers": 3, "head_dim": None, "num_heads": 4, "fuse_norm": False, "norm_first": False,
        "norm_bias": False, "tie_word_embeddings": True, "intermediate_size": None, "hidden_ratio": 3,
        "value_dim": [32, 32, 32],
    }),
    "rwkv7, heads that contradict": ("rwkv7", {"head_dim": 8, "num_heads": 32, "norm_eps": 1e-3}),
    "gla, convolutions": ("gla", {
        "use_short_conv": True, "conv_size": 3, "fuse_norm": False, "expand_v": 2.0, "expand_k": 1.0,
        "elementwise_affine": None, "intermediate_size": None, "hidden_ratio": None,
    }),
    "gla, no gate": ("gla", {"use_output_gate": False, "tie_word_embeddings": True}),
    "retnet, no gate": ("retnet", {"use_output_gate": False, "use_short_conv": True, "expand_v": 1.5}),
    "delta_net, gate": ("delta_net", {"use_gate": True, "allow_neg_eigval": True, "expand_v": 2.0, "conv_size": 3}),
    "gated_deltanet, values": ("gated_deltanet", {
        "num_v_heads": 4, "expand_v": 1.5, "output_gate_activation": "sigmoid", "allow_neg_eigval": True,
        "num_hidden_layers": 1,
    }),
    "gated_deltanet, no gate": ("gated_deltanet", {"use_gate": False, "num_hidden_layers": 1}),
    "kda, values": ("kda", {
        "num_v_heads": 4, "expand_v": 2.0, "lower_bound": -5.0, "safe_gate": True, "allow_neg_eigval": True,
        "num_hidden_layers": 1,
    }),
    "transformer, all keys": ("transformer", {
        "num_heads": 4, "num_kv_heads": 2, "qkv_bias": True, "qk_norm": True, "window_size": 3, "rope_theta": 500.0,
        "intermediate_size": None, "elementwise_affine": False, "norm_eps": 1e-3,
    }),
}  # fmt: skip
CASES: dict[str, Case] = {kind: (kind, keys) for kind, keys in BASES.items()} | {
    name: (kind, BASES[kind] | keys) for name, (kind, keys) in FURTHER.items()
}
# What else a key may say; every key is also left out, null, and of another number or truth.
WORDS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("swish", "silu", "relu", "powlu", "sqrelu"), "feature_map": ("relu", "swish", "elu"),
    "qk_norm": ("sum",), "qk_activation": ("relu", "elu", "identity"), "attn_mode": ("fused_recurrent", "parallel"),
    "output_gate_activation": ("silu", "sigmoid", "relu"), "num_kv_heads": (1, 2), "clamp_min": (-0.1,),
    "attnres_block_size": (1, 2), "lower_bound": (-5.0,), "num_v_heads": (4, 3), "value_dim": (64, [32, 64]),
    "attn": ({"layers": [0], "num_heads": 4}, [{"layers": [1], "num_heads": 2, "window_size": 5}]),
    "expand_k": (1.25, 0.3), "expand_v": (1.25, 0.3), "hidden_ratio": (3.3,), "num_heads": (4, 3),
    "head_dim": (16, 12), "conv_size": (2,),
}  # fmt: skip
KEYS = {
    "rwkv7": (*RANKS, "attn_mode", "hidden_ratio", "head_dim", "num_heads", "hidden_act", "norm_first", "norm_bias",
        "norm_eps", "attn", "tie_word_embeddings", "fuse_norm", "use_l2warp", "value_dim"),
    "gla": ("expand_k", "expand_v", "hidden_ratio", "num_heads", "num_kv_heads", "feature_map", "attn_mode",
        "use_short_conv", "conv_size", "use_output_gate", "clamp_min", "hidden_act", "elementwise_affine", "norm_eps",
        "use_gk", "use_gv", "attn", "tie_word_embeddings", "fuse_norm", "fuse_swiglu", "attnres_block_size"),
    "delta_net": ("expand_k", "expand_v", "use_gate", "use_short_conv", "allow_neg_eigval", "conv_size", "use_beta",
        "use_output_norm", "num_heads", "qk_norm", "qk_activation", "hidden_act", "norm_eps", "attn", "fuse_norm",
        "attnres_block_size"),
    "gated_deltanet": ("expand_v", "use_gate", "use_short_conv", "allow_neg_eigval", "conv_size", "head_dim",
        "num_heads", "num_v_heads", "hidden_ratio", "norm_eps", "output_gate_activation", "attn", "attnres_block_size"),
    "kda": ("expand_v", "use_short_conv", "allow_neg_eigval", "safe_gate", "lower_bound", "conv_size", "head_dim",
        "num_heads", "num_v_heads", "hidden_act", "norm_eps", "attn", "attnres_block_size"),
    "transformer": ("num_heads", "num_kv_heads", "qkv_bias", "qk_norm", "window_size", "rope_theta", "hidden_ratio",
        "hidden_act", "elementwise_affine", "norm_eps", "tie_word_embeddings", "fuse_norm", "attnres_block_size"),
}  # fmt: skip
KEYS["retnet"] = tuple(key for key in KEYS["gla"] if key not in ("clamp_min", "use_gk", "use_gv"))


def made(cases: dict[str, Case], place: Path) -> Path:
    """The folder in which fla has written the cases."""
    (place / "cases.json").write_text(json.dumps(cases))
    paths = os.pathsep.join(map(str, (ROOT, INSTALLED)))
    command = [sys.executable, "-m", "tests.helpers.fla_reference", str(place)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, cwd=ROOT, capture_output=True, text=True)
    if "No module named" in done.stderr:
        pytest.skip("needs flash-linear-attention (make fla)")
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(CASES, tmp_path_factory.mktemp("fla"))


def texts() -> torch.Tensor:
    """The two texts that the reference has read."""
    return (torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 + 3) % SIZES["vocab_size"]


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_folders_are_read_and_written(name: str, published: Path, tmp_path: Path) -> None:
    folder, tokens = published / name, texts()
    theirs = load_file(folder / "logits.safetensors")["logits"]
    lm: Any = archetype.load(folder / "model", dtype="float32")
    assert distance(lm.model(tokens).logits, theirs) < EXACT
    archetype.export(lm, tmp_path / "written")
    read, rewritten = (load_file(one / "model.safetensors") for one in (folder / "model", tmp_path / "written"))
    # without fused kernels, fla names one norm otherwise
    read = {
        key.replace(".g_norm.", ".g_norm_swish_gate.") if "gla, conv" in name else key: t for key, t in read.items()
    }
    assert rewritten.keys() == read.keys() and all(torch.equal(tensor, read[key]) for key, tensor in rewritten.items())
    assert read_hf_spec(tmp_path / "written")[1] == lm.spec
    exact: Any = archetype.load(tmp_path / "written", dtype="float64")
    whole = exact.model(tokens).logits
    state = exact.model.new_state(2, LENGTH)
    assert distance(in_chunks(exact.model, tokens, state, list(range(PROMPT, LENGTH))), whole) < 1e-12
    # the control: any tensor with its rows in another order
    weight = lm.model.get_parameter("blocks.0.mixer.v.weight")
    weight.copy_(weight.roll(1, 0))
    assert distance(lm.model(tokens).logits, theirs) > WRONG


@pytest.mark.slow
def test_fla_reads_what_is_written(published: Path, tmp_path: Path) -> None:
    for name in CASES:
        archetype.export(archetype.load(published / name / "model"), tmp_path / name / "model")
    made({name: (kind, None) for name, (kind, _) in CASES.items()}, tmp_path)
    for name in CASES:
        theirs, again = (load_file(place / name / "logits.safetensors")["logits"] for place in (published, tmp_path))
        with case(name):
            assert distance(again, theirs) < EXACT


def changes(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The small model of a type with one key changed, and the change in words."""
    for key in (*KEYS[kind], "intermediate_size", "hidden_size", "vocab_size", "num_hidden_layers"):
        base = {
            name: value for name, value in BASES[kind].items() if key != "hidden_ratio" or name != "intermediate_size"
        }
        others: list[Any] = [None, True, False, *WORDS.get(key, ())]
        if isinstance(base.get(key), int):
            others += [base[key] * 2, base[key] + 1]
        for value in others + ([1e-3] if key == "norm_eps" else []):
            if value != base.get(key, ...) or type(value) is not type(base.get(key)):  # True is 1
                yield f"{kind} {key}={json.dumps(value)}", base | {key: value}
        if key in base and key not in ("hidden_size", "vocab_size", "num_hidden_layers"):  # whose defaults are large
            yield f"{kind} {key} (absent)", {other: value for other, value in base.items() if other != key}


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("kind", BASES)
def test_each_key_is_obeyed_or_refused(kind: str, tmp_path: Path) -> None:
    tried = dict(changes(kind))
    place = made({f"{number}": (kind, keys) for number, keys in enumerate(tried.values())}, tmp_path)
    outcomes = {"agrees": 0, "refused": 0, "not made": 0}
    for number, name in enumerate(tried):
        folder = place / f"{number}"
        with case(name):
            if (folder / "error.txt").exists():
                outcomes["not made"] += 1
                continue
            try:
                lm: Any = archetype.load(folder / "model", dtype="float32")
            except ArchetypeError as error:
                assert "\n" not in str(error)
                outcomes["refused"] += 1
                continue
            theirs, ours = load_file(folder / "logits.safetensors")["logits"], lm.model(texts()).logits
            # heads of two features amplify rounding: as much as float32 differs from float64, here as in fla
            rounding = distance(ours.double(), archetype.load(folder / "model", dtype="float64").model(texts()).logits)
            assert distance(ours, theirs) < max(EXACT, min(8 * rounding, WRONG))
            outcomes["agrees"] += 1
    assert outcomes["agrees"] >= 10, outcomes
