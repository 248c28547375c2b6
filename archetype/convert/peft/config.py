"""Parsing of adapter_config.json: each key is used, known not to affect a trained adapter, or refused."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from archetype.confined.process import Confined, ConfinedError
from archetype.errors import CheckpointError
from archetype.io.files import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NUMBER = (int, float)
# keys that are read, and their types; null counts as missing
READ: dict[str, tuple[type, ...]] = {
    "peft_type": (str,), "base_model_name_or_path": (str,), "revision": (str,), "r": (int,), "lora_alpha": NUMBER,
    "rank_pattern": (dict,), "alpha_pattern": (dict,), "use_rslora": (bool,), "use_dora": (bool,),
    "lora_bias": (bool,), "bias": (str,), "init_lora_weights": (bool, str), "target_modules": (list, str),
    "exclude_modules": (list, str), "layers_to_transform": (list, int), "layers_pattern": (list, str),
    "modules_to_save": (list,), "ensure_weight_tying": (bool,),
}  # fmt: skip
# types of list elements
ELEMENTS: dict[str, tuple[type, ...]] = dict.fromkeys(
    ("target_modules", "exclude_modules", "layers_pattern", "modules_to_save"), (str,)
) | {"layers_to_transform": (int,)}
REQUIRED = ("base_model_name_or_path", "r", "lora_alpha")
# keys about training or about the file, and fan_in_fan_out, which follows from the base model's matrix
WITHOUT_EFFECT = {
    "task_type", "auto_mapping", "peft_version", "inference_mode", "lora_dropout", "fan_in_fan_out", "megatron_config",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config", "runtime_config",
    "qalora_group_size", "merge_weights",
}  # fmt: skip
EMPTY: tuple[Any, ...] = (None, False, [], {})  # values that switch a key off
# initializations that leave the base unchanged, and those that subtract the initial B A from it
PLAIN_BEGINNINGS, RESIDUAL_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal", "mica"), ("pissa", "olora")
BIASES = ("none", "all", "lora_only")
MAX_NUMBER = 2**53  # of ranks and alphas
MAX_SECONDS, MAX_BYTES = 2.0, 2**24  # of the look-up and of its answer
MERGE, REWRITE = "merge it in peft", "write it again with save_pretrained"
_look_up = Confined("archetype.convert.peft.names", 2**29)


@dataclass(frozen=True)
class PeftConfig:
    """Keys of an adapter_config.json, without nulls."""

    file: Path
    values: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        """Name of the file that stores the adapter's tensors."""
        return self.file.with_name(WEIGHTS)

    @property
    def base(self) -> str:
        """Name or path of the base model."""
        return str(self.values["base_model_name_or_path"])

    @property
    def residual(self) -> str | None:
        """Name of an initialization that subtracted its product from the base before training; None if not used."""
        name = self.values.get("init_lora_weights", True)
        return name if name in RESIDUAL_BEGINNINGS else None

    def saves(self, module: str) -> bool:
        """Return whether a module is stored in full (`modules_to_save`)."""
        return any(module.endswith(name) for name in self.values.get("modules_to_save", ()))

    def scale(self, module: "Named") -> float:
        """Return the scaling factor of B A for a module."""
        return module.alpha / (math.sqrt(module.rank) if self.values.get("use_rslora") else module.rank)

    def look_up(self, modules: Iterable[str]) -> "tuple[dict[str, Named], bool]":
        """Match modules against the configuration's rules.

        Args:
            modules: names of the modules that have adapters in the tensor file.

        Returns:
            Settings by module, and whether a tied head shares the embedding's adapter. PEFT only shares it with heads
                whose name it knows.

        Raises:
            CheckpointError: a key has an invalid regular expression, or the expressions take too long.
        """
        names = list(modules)
        try:
            looked_up = _look_up(self.values, names, seconds=MAX_SECONDS, max_bytes=MAX_BYTES)
        except ConfinedError as error:
            cause = f"finding the modules that it names {error}"
            raise CheckpointError(str(self.file), cause, "simplify its regular expressions") from None
        if "wrong" in looked_up:
            key, expression = looked_up["wrong"]
            _refuse(self, key, f"{expression!r} is not a regular expression", REWRITE)
        ties = looked_up["ties"] and bool(self.values.get("ensure_weight_tying"))
        return {name: Named(*values) for name, values in zip(names, looked_up["modules"], strict=True)}, ties


class Named(NamedTuple):
    """Adapter settings of a module."""

    rank: int
    alpha: float
    is_adapted: bool


def read_config(folder: Path) -> PeftConfig:
    """Read the adapter_config.json of a folder.

    Raises:
        CheckpointError: a key is damaged, unknown, or requires an unsupported computation.
    """
    values = {key: value for key, value in read_json(folder / CONFIG).items() if value is not None}
    config = PeftConfig(folder / CONFIG, values)
    if (kind := values.get("peft_type")) != "LORA":
        _refuse(config, "peft_type", f"is {kind!r:.40}, and only LORA is supported", MERGE)
    for key, value in values.items():
        if key in READ:
            if not _is_of(value, READ[key]):
                _refuse(config, key, "is missing or damaged", REWRITE)
        elif key not in WITHOUT_EFFECT and value not in EMPTY:
            _refuse(config, key, f"{value!r:.60} is not supported", MERGE)
    for key in REQUIRED:
        if not values.get(key):
            _refuse(config, key, "is missing or damaged", REWRITE)
    _check_values(config)
    return config


def _check_values(config: PeftConfig) -> None:
    values, beginning = config.values, config.values.get("init_lora_weights", True)
    if values.get("bias", "none") not in BIASES:
        _refuse(config, "bias", f"{values['bias']!r:.60} is not supported", MERGE)
    if beginning not in (*PLAIN_BEGINNINGS, *RESIDUAL_BEGINNINGS):
        cause = f"{beginning!r:.40} changed the base in a way that cannot be reproduced"
        _refuse(config, "init_lora_weights", cause, "save it with path_initial_model_for_weight_conversion")
    base = Path(config.base)
    local = base.is_dir() or (config.file.parent / base).is_dir()
    if (revision := values.get("revision", "main")) != "main" and not local:
        cause = f"{revision!r:.40} of the base is not downloaded automatically"
        _refuse(config, "revision", cause, "download it, and use its folder as the base")
    if not 0 < values["r"] <= MAX_NUMBER:
        _refuse(config, "r", f"{values['r']!r:.40} is not a rank", REWRITE)
    # written so that NaN is refused too
    if not abs(values["lora_alpha"]) <= MAX_NUMBER:
        _refuse(config, "lora_alpha", f"{values['lora_alpha']!r:.40} is not a factor", REWRITE)
    for key, types in ELEMENTS.items():
        listed = values[key] if isinstance(values.get(key), list) else []
        for value in listed:
            if not _is_of(value, types):
                _refuse(config, key, f"{value!r:.40} is neither a name nor a layer index", REWRITE)
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern, value in values.get(key, {}).items():
            if not _is_of(value, READ["r" if key == "rank_pattern" else "lora_alpha"]) or not 0 < value <= MAX_NUMBER:
                _refuse(config, f"{key}.{pattern}", f"{value!r:.40} is not a positive number", REWRITE)


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    # a bool is not a number
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _refuse(config: PeftConfig, key: str, cause: str, remedy: str) -> NoReturn:
    raise CheckpointError(f"{config.file}: {key}", cause, remedy)
