"""Small models of transformers, each with one key of its config.json changed, and what becomes of them here.

A key that transformers obeys must be obeyed here or refused, and one that it does not read must change nothing.
"""

import copy
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import archetype
from archetype.convert.source import read_hf_spec
from archetype.errors import ArchetypeError
from archetype.families.class_keys import keys_read, release_of
from archetype.families.config import BOOKKEEPING
from archetype.models.spec import ModelSpec
from tests.helpers.published import EXACT
from tests.helpers.weights import distance
from tests.helpers.zoo import MOST, TEXT, drawn, logits_of, page_of, rows_of, small_config

ABSENT: Any = object()
ROUNDINGS = 8  # by how many of which two orders of the same sums may differ; less than EXACT in a usual model
MOST_ROUNDED = 0.01  # no difference beyond it is rounding, however a model amplifies it
# Keys that the library that writes a file fills in, and that no class asks for.
SKIPPED = BOOKKEEPING | {"is_decoder", "is_encoder_decoder", "tie_encoder_decoder"}
# Other values for names, by what a key ends in; a name under another key is replaced by one that nobody knows.
NAMES: dict[str, tuple[str, ...]] = {
    "act": ("gelu_pytorch_tanh", "relu", "silu"),
    "activation": ("gelu_pytorch_tanh", "relu", "silu"),
    "activation_function": ("gelu_pytorch_tanh", "relu", "silu"),
    "afn": ("gelu", "relu", "silu"),
    "position_embedding_type": ("absolute", "rope", "nope", "alibi"),
    "scoring_func": ("softmax", "sigmoid"),
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
}
ROPE: tuple[dict[str, Any], ...] = (
    {"rope_theta": 100.0},
    {"partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 0.5, "mscale_all_dim": 0.8},
)  # fmt: skip
# Positions as files of transformers 4 say them.
OLDER: tuple[dict[str, Any], ...] = (
    {"rope_parameters": ABSENT, "rope_theta": 100.0},
    {"rope_parameters": ABSENT, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": ABSENT, "rope_theta": 100.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 8},
    {"rope_parameters": {"full_attention": {"rope_theta": 100.0}, "sliding_attention": {"rope_theta": 1000.0}}},
)
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
# Keys of some class each; what a file of another type says under them must be what that type's class makes of it.
FOREIGN: dict[str, Any] = {
    "alibi": True, "attention_multiplier": 0.5, "attn_logit_softcapping": 0.5, "clip_qkv": 0.1, "dim_model_base": 16,
    "do_layer_norm_before": False, "embedding_multiplier": 2.0, "embedding_scale": 2.0, "final_logit_softcapping": 0.5,
    "head_dim": 4, "hidden_act": "relu", "hidden_activation": "relu", "is_causal": False, "layer_norm_eps": 0.1,
    "layer_rope_theta": [100.0, 0], "layer_types": ["sliding_attention", "full_attention"],
    "linear_allow_neg_eigval": True, "lm_head_multiplier": 0.5, "logit_scale": 0.5, "logits_scaling": 0.5,
    "mixer_rms_eps": 0.1, "mup_enabled": True, "n_group": 2, "no_rope_layers": [0, 1], "norm_topk_prob": True,
    "normalize_before": False, "num_attention_heads_per_layer": [2, 2], "parallel_attn": True,
    "partial_rotary_factor": 0.5, "per_layer_config": {"0": {"rms_norm_eps": 0.1}}, "position_embedding_type": "rope",
    "query_pre_attn_scalar": 100, "residual_multiplier": 0.5, "rms_norm_eps": 0.1, "rope_interleave": True,
    "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 100.0,
    "rotary_dim": 4, "rotary_emb_base": 100.0, "rotary_pct": 0.5, "routed_scaling_factor": 2.0,
    "router_scale": 2.0, "scale_attn_weights": False, "scale_depth": 1.4, "scale_emb": 2.0, "scale_embedding": True,
    "scoring_func": "sigmoid", "sliding_window": 4, "sliding_window_pattern": 2, "softmax_scale": 0.5,
    "time_step_limit": [0.0, 0.1], "topk_group": 1, "topk_method": "greedy", "use_parallel_residual": True,
    "use_sliding_window": True, "window_size": 4,
}  # fmt: skip


class Change(NamedTuple):
    """One key of a config.json, perhaps in a section, and another value for it; or it is `ABSENT`."""

    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={'(absent)' if self.value is ABSENT else json.dumps(self.value)}"

    def make(self, values: dict[str, Any]) -> None:
        """Change a config.json."""
        for name in self.path[:-1]:
            values = values[name]
        values[self.path[-1]] = self.value
        if self.value is ABSENT:
            del values[self.path[-1]]


@dataclass(frozen=True)
class Result:
    """What became of changes: logits agree or differ, one is refused here, or transformers itself has no such model."""

    kind: str
    changes: tuple[Change, ...]
    status: Literal["agrees", "differs", "refused", "not made"]
    said: str


def tried_types() -> list[str]:
    """The causal types that are read, but those whose class is made of its text's configuration by hand alone."""
    rows = rows_of(page_of("causal").read_text(encoding="utf-8"), release_of(transformers.__version__))
    return [kind for kind, (status, _) in rows.items() if status == "agrees" and kind not in ("emu3", "mllama")]


class SmallModel:
    """A small model of a type in a folder, every tensor random, of which config.json can be changed.

    Args:
        kind: of the model.
        folder: empty.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.reshaped = kind, folder / "small", folder / "reshaped"
        model = AutoModelForCausalLM.from_config(small_config(kind))
        self.values = json.loads(model.config.to_json_string(use_diff=False))
        self.read = keys_read(self.values, (self.values.get("text_config") or self.values)["model_type"]) or {}
        self.values["architectures"] = [type(model).__name__]
        drawn(model).save_pretrained(self.folder)
        self.state = model.state_dict()
        self.theirs = _with_state(_model(self.folder, self.values), self.state)
        self.spec, self.ours = _our_spec(self.folder, self.values), _our_logits(self.folder, self.values)

    def outcomes(self) -> Iterator[Result]:
        """What becomes of each change alone, but of those together that no class is said to read."""
        unread = tuple(change for change in self.changes() if change.path[-1] not in self.read)
        together = self.outcome(*unread)
        if together.status == "agrees":
            yield from (Result(self.kind, (change,), "agrees", together.said) for change in unread)
        if "rope_parameters" in self.values:
            for older in OLDER:
                yield self.outcome(*(Change((key,), value) for key, value in older.items()))
        for stack in self.stacks():
            yield self.outcome(*stack)
        for change in self.changes():
            if together.status != "agrees" or change not in unread:
                yield self.outcome(change)

    def changes(self) -> Iterator[Change]:
        """Each key of the part that reads text, changed alone to each other sensible value."""
        inside = ("text_config",) if isinstance(self.values.get("text_config"), dict) else ()
        values = self.values["text_config"] if inside else self.values
        declared = {field.name: str(field.type) for field in fields(CONFIG_MAPPING[values["model_type"]])}
        for key, value in values.items():
            if key in SKIPPED or key.startswith("_") or key in ("text_config", "vision_config", "audio_config"):
                continue
            for other in _others(key, value, declared.get(key, "")):
                yield Change((*inside, key), other)
            if not isinstance(value, int) or isinstance(value, bool):  # a size would be the published model's
                yield Change((*inside, key), ABSENT)
        for key, value in FOREIGN.items():
            if key not in values:
                yield Change((*inside, key), value)
        for name, key in CONFIG_MAPPING[values["model_type"]].attribute_map.items():  # of two names of one attribute
            for other in (
                _others(name, values.get(key), declared.get(key, "")) if name not in (*values, *FOREIGN) else ()
            ):
                yield Change((*inside, name), other)

    def stacks(self) -> Iterator[tuple[Change, ...]]:
        """Deeper models: of the kinds of layers that the class has by default, and with the last kind first."""
        inside = ("text_config",) if isinstance(self.values.get("text_config"), dict) else ()
        values = self.values["text_config"] if inside else self.values
        depth = next((key for key in DEPTH if isinstance(values.get(key), int)), None)
        if depth is None:
            return
        lists = {key: one for key, one in values.items() if isinstance(one, list) and len(one) == values[depth]}
        lists.pop("architectures", None)
        deeper = [dict.fromkeys(lists, ABSENT)]
        deeper += [{key: [one[-1], one[0], one[0], one[-1], one[0]] for key, one in lists.items()}] if lists else []
        for others in deeper:
            yield tuple(Change((*inside, key), value) for key, value in ({depth: 5} | others).items())

    def outcome(self, *changes: Change) -> Result:
        """What transformers and Archetype make of the folder with these changes."""
        values, folder = copy.deepcopy(self.values), self.folder
        for change in changes:
            change.make(values)
        grows = any(change.value is ABSENT or type(change.value) is int for change in changes)
        try:
            model = _model(folder, values, grows)
            state = model.state_dict()
            if any(
                change.path[-1].startswith("tie_") for change in changes
            ):  # which the reading of a file decides with what is in it
                model = AutoModelForCausalLM.from_pretrained(folder)
                theirs = logits_of(model)
            elif {name: one.shape for name, one in state.items()} == {n: one.shape for n, one in self.state.items()}:
                theirs = _with_state(model, self.state)
            else:
                folder = self.reshaped
                shutil.rmtree(folder, ignore_errors=True)
                drawn(model).save_pretrained(folder)
                drawn_state = model.state_dict()
                model = _model(folder, values)
                theirs = _with_state(model, drawn_state)
        except Exception as error:  # whatever a class raises on values that it was not written for
            return Result(self.kind, changes, "not made", f"{type(error).__name__}: {error}")
        try:
            is_new = folder is self.reshaped or _our_spec(folder, values) != self.spec
            ours = _our_logits(folder, values) if is_new else self.ours
        except ArchetypeError as error:
            return Result(self.kind, changes, "refused", str(error).replace(str(folder), ""))
        difference = distance(ours, theirs)
        agrees = difference < EXACT or difference < min(MOST_ROUNDED, ROUNDINGS * condition(model, theirs))
        return Result(self.kind, changes, "agrees" if agrees else "differs", f"{difference:.1e}")


def _model(folder: Path, values: dict[str, Any], grows: bool = False) -> PreTrainedModel:
    """Transformers' model of a config.json, which is written into the folder; refused where it `grows` too large."""
    (folder / "config.json").write_text(json.dumps(values))
    config = AutoConfig.from_pretrained(folder)
    if grows:
        with torch.device("meta"):
            if (count := AutoModelForCausalLM.from_config(config).num_parameters()) > MOST:
                raise ValueError(f"{count:,} parameters")
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model.eval()


def condition(model: PreTrainedModel, logits: Tensor) -> float:
    """How far the logits move if each weight is rounded once more. Rates far above 1 amplify what a float32 loses."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 1 + torch.finfo(weight.dtype).eps * torch.randn(weight.shape, generator=generator)
    return distance(logits_of(model), logits)


def _with_state(model: PreTrainedModel, state: dict[str, Tensor]) -> Tensor:
    """The logits of a model that is given its weights."""
    model.load_state_dict(state)
    return logits_of(model)


def _our_spec(folder: Path, values: dict[str, Any]) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(values))
    return read_hf_spec(folder, warn=False)[1]


def _our_logits(folder: Path, values: dict[str, Any]) -> Tensor:
    (folder / "config.json").write_text(json.dumps(values))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logits: Tensor = archetype.load(folder).model(TEXT).logits
    return logits


def _others(key: str, value: Any, declared: str) -> Iterator[Any]:
    """Other values that a key may sensibly have, by the type of its own or as its class declares it."""
    if key in ("rope_parameters", "rope_scaling"):
        yield from _other_positions(value or {})
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, str):
        names = next((names for end, names in NAMES.items() if key.endswith(end)), ("another",))
        yield from (name for name in names if name != value)
    elif isinstance(value, int):
        yield from {2 * value, value // 2, 1 - value if value < 2 else value - 1} - {value}
    elif isinstance(value, float):
        yield 0.1 if value < 1e-3 else 0.5 * value
        yield 2.0 * value if value >= 1 else 0.9
    elif isinstance(value, list):
        yield from _other_lists(value)
    elif value is None:
        yield from (other for name, other in (("bool", True), ("int", 2), ("float", 0.5)) if name in declared)


def _other_lists(value: list[Any]) -> Iterator[list[Any]]:
    if not value or isinstance(value[0], list | dict):
        return
    others = [value[::-1], value[:1] * len(value), value[-1:] * len(value)]
    if isinstance(value[0], int) and not isinstance(value[0], bool):
        others += [[2 * value[0], *value[1:]], [*value[:-1], 2 * value[-1]], [1 - n for n in value]]
    seen = [value]
    for other in others:
        if other not in seen:
            seen.append(other)
            yield other


def _other_positions(section: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rotary positions with each key of `ROPE` set, at the top and within each kind of layers."""
    nested = [name for name, value in section.items() if isinstance(value, dict)]
    for changes in ROPE:
        for name in nested:
            yield section | {name: section[name] | changes}
        if not nested:
            yield section | changes
