"""Conversion between the modules that follow the transformer and the head of a specification."""

import json
from collections.abc import Mapping
from typing import Any

from archetype.convert.sentence_transformers.files import (
    CONFIG,
    MODULES,
    PROMPTS,
    SETTINGS,
    Files,
    listed_modules,
    read_json,
    read_settings,
)
from archetype.errors import CheckpointError, enumeration
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import GELU, NoActivation, ReLU, Sigmoid, SiLU, Tanh
from archetype.parts.sentence_head.spec import DenseLayer, PoolingMode, SentenceEmbeddingHead
from archetype.roles.activation import Activation

# Pooling modes: ours, the library's, and its older key, in the order in which the library concatenates several.
MODES: tuple[tuple[PoolingMode, str, str], ...] = (
    ("first", "cls", "pooling_mode_cls_token"),
    ("max", "max", "pooling_mode_max_tokens"),
    ("mean", "mean", "pooling_mode_mean_tokens"),
    ("mean_sqrt_len", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    ("weighted_mean", "weightedmean", "pooling_mode_weightedmean_tokens"),
    ("last", "lasttoken", "pooling_mode_lasttoken"),
)
ACTIVATIONS: dict[str, Activation] = {
    "torch.nn.modules.linear.Identity": NoActivation(),
    "torch.nn.modules.activation.Tanh": Tanh(),
    "torch.nn.modules.activation.GELU": GELU(),
    "torch.nn.modules.activation.ReLU": ReLU(),
    "torch.nn.modules.activation.Sigmoid": Sigmoid(),
    "torch.nn.modules.activation.SiLU": SiLU(),
}
TYPE = "sentence_transformers.models."  # prefix of module types; every version of the library reads it


def read_head(files: Files) -> SentenceEmbeddingHead | None:
    """Return the head described by the modules; None if no module pools.

    Raises:
        CheckpointError: a module or key is unknown.
    """
    pooling: tuple[PoolingMode, ...] = ()
    layers: list[DenseLayer] = []
    normalize = False
    for module in listed_modules(files):
        kind, path = module["type"].rpartition(".")[2], module["path"]
        match kind:
            case "Transformer" if not path:
                pass
            case "Pooling" if not pooling:
                pooling = _read_pooling(read_json(files, f"{path}/{CONFIG}"), path)
            # guards check the order: pooling, then dense layers, then normalization
            case "Normalize" if pooling:
                normalize = True
            case "Dense" if pooling and not normalize:
                layers.append(_read_dense(read_json(files, f"{path}/{CONFIG}"), path))
            case "Dropout" if pooling:
                pass  # only used in training
            case _:
                cause = f"the module {kind} is not supported"
                raise CheckpointError(f"{MODULES}: {path or kind}", cause, "give --pooling")
    if not pooling:
        return None
    return SentenceEmbeddingHead(pooling=pooling, layers=tuple(layers), normalize=normalize)


def dense_folders(files: Files) -> list[str]:
    return [module["path"] for module in listed_modules(files) if module["type"].rpartition(".")[2] == "Dense"]


def with_head_of(model: ModelSpec, files: Files) -> ModelSpec:
    """Replace the language modelling head with the sentence head described by the modules.

    The library ignores the language modelling head too, which many folders name without storing its weights. If a
    module is unknown, the model keeps its head, and `read_head` raises the error when a text is embedded.
    """
    try:
        head = read_head(files) if model.embeds_tokens and not model.head.has_classes else None
    except CheckpointError:
        return model
    return model if head is None else model.with_sentence_head().replace(head=head)


def write_head(model: ModelSpec, before: Files) -> dict[str, bytes]:
    """Return the files of a model's sentence head, without weights.

    Args:
        before: files of the original folder. Their prompts and lengths are kept.
    """
    head, width = model.head, getattr(model, "d_model", 0)
    configs = [("Pooling", _pooling_config(head, width, read_settings(before).pools_prompt))]
    width *= len(head.pooling)
    for layer in head.layers:
        configs.append(("Dense", _dense_config(layer, width)))
        width = layer.width
    if head.normalize:
        configs.append(("Normalize", {}))
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{TYPE}Transformer"}]
    files: dict[str, Any] = {}
    for index, (kind, config) in enumerate(configs, start=1):
        path = f"{index}_{kind}"
        modules.append({"idx": index, "name": str(index), "path": path, "type": f"{TYPE}{kind}"})
        if config:
            files[f"{path}/{CONFIG}"] = config
    files |= {MODULES: modules, SETTINGS: {"max_seq_length": model.context_length, "do_lower_case": False}}
    files[PROMPTS] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    written = {name: json.dumps(content, indent=2).encode() for name, content in files.items()}
    return written | {name: before[name] for name in (SETTINGS, PROMPTS) if name in before}


def _read_pooling(config: Mapping[str, Any], path: str) -> tuple[PoolingMode, ...]:
    modes = config.get("pooling_mode", [mode for _, mode, key in MODES if config.get(key) is True])
    names = (modes,) if isinstance(modes, str) else tuple(modes)
    known = {mode: ours for ours, mode, _ in MODES}
    if not names or not all(isinstance(name, str) and name in known for name in names):
        cause = f"{modes!r} is not supported"
        raise CheckpointError(f"{path}/{CONFIG}: pooling_mode", cause, f"use {enumeration(known, 'or')}")
    return tuple(known[name] for name in names)


def _pooling_config(head: SentenceEmbeddingHead, width: int, pools_prompt: bool) -> dict[str, Any]:
    # the older keys imply an order of concatenation; any other order needs the new key
    order = tuple(ours for ours, _, _ in MODES if ours in head.pooling)
    if order == head.pooling:
        modes: dict[str, Any] = {key: ours in head.pooling for ours, _, key in MODES}
    else:
        names = {ours: mode for ours, mode, _ in MODES}
        modes = {"pooling_mode": [names[mode] for mode in head.pooling]}
    return {"word_embedding_dimension": width} | modes | {"include_prompt": pools_prompt}


def _read_dense(config: Mapping[str, Any], path: str) -> DenseLayer:
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    known = {key.rpartition(".")[2]: activation for key, activation in ACTIVATIONS.items()}
    if name not in known:
        raise CheckpointError(f"{path}/{CONFIG}: activation_function", f"{name!r} is not supported", "give --pooling")
    if config.get("use_residual") or config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise CheckpointError(
            f"{path}/{CONFIG}", "is not a plain linear layer on the sentence embedding", "set --pooling"
        )
    width = config.get("out_features")
    if type(width) is not int or width < 1:
        raise CheckpointError(
            f"{path}/{CONFIG}: out_features", f"{width!r} is not a number of features", "fix the file"
        )
    return DenseLayer(width=width, activation=known[name], bias=config.get("bias", True) is True)


def _dense_config(layer: DenseLayer, width: int) -> dict[str, Any]:
    names = {activation: name for name, activation in ACTIVATIONS.items()}
    if layer.activation not in names:
        cause = f"{layer.activation.kind} is not an activation of sentence-transformers"
        raise CheckpointError("head.layers: activation", cause, "keep the run directory")
    return {
        "in_features": width,
        "out_features": layer.width,
        "bias": layer.bias,
        "activation_function": names[layer.activation],
    }
