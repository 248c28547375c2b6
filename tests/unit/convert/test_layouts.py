"""Layouts of tensors that no file shows: each is set by its name, and reads what was written so."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import archetype
from archetype import spec
from archetype.convert.source import read_hf_spec
from archetype.errors import SpecError
from archetype.models.build import Model, build
from tests.helpers.weights import distance, randomize

TEXT = torch.arange(12)[None] % 31
HEADS, KV_HEADS, D = 8, 4, 32
NAMES = {"mixer_norm": "input_layernorm", "feedforward_norm": "post_attention_layernorm"}
pytestmark = pytest.mark.filterwarnings("ignore::archetype.errors.UnknownFamily")
Tensors = dict[str, Tensor]


def decoder(d_ff: int = 48, gate: bool = False, experts: bool = False) -> Model:
    mlp = {"kind": "gated", "d_ff": d_ff, "activation": "silu"}
    sparse = {"kind": "experts", "num_experts": 4, "experts_per_token": 2, "expert": {**mlp, "kind": "mlp"}}
    mixer = {"kind": "attention", "num_heads": HEADS, "num_kv_heads": KV_HEADS, "position": {"kind": "rotary"}}
    block = {"wiring": {"kind": "pre_norm", "norm": {"kind": "rms"}}, "feedforward": sparse if experts else mlp}
    block["mixer"] = mixer | ({"gate": {}} if gate else {})
    sizes = {"vocab_size": 31, "context_length": 32, "d_model": D, "final_norm": {"kind": "rms"}}
    return randomize(build(spec.parse({"kind": "decoder", **sizes, "layers": [block] * 2})))


def by_layer(model: Model, layer: int) -> Tensors:
    before = f"blocks.{layer}."
    state = model.state_dict()
    return {name.removeprefix(before): tensor for name, tensor in state.items() if name.startswith(before)}


def write(folder: Path, model: Model, change: Callable[[Tensors], Tensors]) -> Path:
    """A folder of a family that nobody knows, with what `change` makes of each layer's tensors."""
    state = model.state_dict()
    tensors = {"model.embed_tokens.weight": state["embedding.token.weight"], "lm_head.weight": state["lm_head.weight"]}
    tensors["model.norm.weight"] = state["final_norm.weight"]
    for layer in range(2):
        parts = by_layer(model, layer)
        norms = {f"{theirs}.weight": parts[f"{ours}.weight"] for ours, theirs in NAMES.items()}
        mixer = {f"self_attn.{one}_proj.weight": parts[f"mixer.{one}.weight"] for one in "qkvo"}
        single = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
        mlp = {f"mlp.{name}.weight": parts[f"feedforward.{one}.weight"] for one, name in single.items()
               if f"feedforward.{one}.weight" in parts}  # fmt: skip
        changed = change(norms | mixer | mlp | {f"ours.{name}": tensor for name, tensor in parts.items()})
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in changed.items() if "ours." not in name}
    folder.mkdir()
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    values = {
        "model_type": "mystery", "architectures": ["MysteryForCausalLM"], "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": D // HEADS, "hidden_act": "silu", "max_position_embeddings": 32,
        "rope_theta": 10_000.0, "rms_norm_eps": 1e-5, "num_experts_per_tok": 2, "norm_topk_prob": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def fused(order: str) -> Callable[[Tensors], Tensors]:
    letters, _, each = order.partition("_per_")
    times = {"": 1, "head": KV_HEADS, "quarter": 4}[each]

    def change(parts: Tensors) -> Tensors:
        pieces = [parts.pop(f"self_attn.{one}_proj.weight").chunk(times) for one in letters]
        rows = torch.cat([torch.cat(group) for group in zip(*pieces, strict=True)])
        return parts | {"self_attn.query_key_value.weight": rows}

    return change


def gate_up(order: str) -> Callable[[Tensors], Tensors]:
    def change(parts: Tensors) -> Tensors:
        gate, up = (parts.pop(f"mlp.{one}_proj.weight") for one in ("gate", "up"))
        both = {"gate_up": (gate, up), "up_gate": (up, gate)}.get(order)
        rows = torch.stack((gate, up), 1).flatten(0, 1) if both is None else torch.cat(both)
        return parts | {"mlp.gate_up_proj.weight": rows}

    return change


def numbered(order: str) -> Callable[[Tensors], Tensors]:
    def change(parts: Tensors) -> Tensors:
        gate, up = (parts.pop(f"mlp.{one}_proj.weight") for one in ("gate", "up"))
        first, third = (gate, up) if order == "true" else (up, gate)
        down = parts.pop("mlp.down_proj.weight")
        return parts | {"mlp.w1.weight": first, "mlp.w3.weight": third, "mlp.w2.weight": down}

    return change


def doubled(order: str) -> Callable[[Tensors], Tensors]:
    def change(parts: Tensors) -> Tensors:
        q, gate = parts.pop("self_attn.q_proj.weight"), parts["ours.mixer.gate.weight"]
        names, _, each = order.partition("_per_")
        pieces = [one.chunk(HEADS if each else 1) for one in ((q, gate) if names == "query_gate" else (gate, q))]
        return parts | {"self_attn.q_proj.weight": torch.cat([torch.cat(pair) for pair in zip(*pieces, strict=True)])}

    return change


def turned(order: str) -> Callable[[Tensors], Tensors]:
    def change(parts: Tensors) -> Tensors:
        if order == "rows":
            return parts
        return {name: tensor.T if tensor.dim() == 2 else tensor for name, tensor in parts.items()}

    return change


def stacked(order: str) -> Callable[[Tensors], Tensors]:
    def change(parts: Tensors) -> Tensors:
        def expert(name: str) -> Tensor:
            tensor = parts[f"ours.feedforward.experts.{name}"]
            return tensor if order == "rows" else tensor.transpose(1, 2)

        experts = {f"mlp.experts.{name}_proj": expert(name) for name in ("up", "down")}
        return parts | experts | {"mlp.gate.weight": parts["ours.feedforward.router.weight"]}

    return change


LAYOUTS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "fused_order": (fused, {}, ("qkv", "qkv_per_head", "qvk_per_quarter")),
    "gate_up_order": (gate_up, {}, ("gate_up", "up_gate", "gate_up_in_turn")),
    "w1_is_gate": (numbered, {}, ("true", "false")),
    "doubled_query": (
        doubled, {"gate": True}, ("query_gate_per_head", "gate_query_per_head", "query_gate", "gate_query"),
    ),
    "experts_layout": (stacked, {"experts": True, "d_ff": D}, ("rows", "columns")),
}  # fmt: skip
CASES = [(layout, value) for layout, (_, _, values) in LAYOUTS.items() for value in values]


@pytest.mark.parametrize(("layout", "value"), CASES)
def test_each_layout_reads_what_was_written_so_and_no_other(tmp_path: Path, layout: str, value: str) -> None:
    writer, settings, values = LAYOUTS[layout]
    model = decoder(**settings)
    folder = write(tmp_path / "model", model, writer(value))
    family, _ = read_hf_spec(folder, warn=False)
    assert set(family.reading.alternatives[layout]) == {*values} - {values_assumed(family.reading, layout)}
    with torch.no_grad():
        expected = model(TEXT).logits
        for one in values:
            read = archetype.load(folder, overrides=[f"{layout}={one}"], accept_unproved=True).model(TEXT).logits
            assert (distance(read, expected) < 1e-5) == (one == value), one


def values_assumed(reading: Any, layout: str) -> str:
    (item,) = [item for item in reading.assumed if item.startswith(f"{layout}=")]
    return str(item.partition("=")[2].partition(" ")[0])


def test_matrices_show_by_their_width_how_they_are_kept_or_it_is_assumed(tmp_path: Path) -> None:
    for name, d_ff, order in (("wide", 48, "columns"), ("square", D, "columns"), ("square rows", D, "rows")):
        model = decoder(d_ff)
        folder = write(tmp_path / name, model, turned(order))
        # keys and values are narrower than the model, so that they show it even where all others are square
        family, _ = read_hf_spec(folder, warn=False)
        assert "matrix_layout" not in family.reading.alternatives
        with torch.no_grad():
            read = archetype.load(folder, accept_unproved=True).model(TEXT).logits
            assert distance(read, model(TEXT).logits) < 1e-5


def test_a_layout_is_refused_where_the_family_is_registered(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", decoder(), turned("rows"))
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 31, "hidden_size": D}
    values |= {"num_hidden_layers": 2, "intermediate_size": 48}
    for key in ("num_experts_per_tok", "norm_topk_prob"):
        del values[key]
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(SpecError, match="is a layout of families that are not registered, but llama"):
        archetype.load(folder, overrides=["fused_order=qkv"])
