"""adapter_config.json: every key is read, known to change no number of a finished adapter, or refused."""

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
# keys that are read, and the types of their values; null is the key left out
READ: dict[str, tuple[type, ...]] = {
    "peft_type": (str,), "base_model_name_or_path": (str,), "revision": (str,), "r": (int,), "lora_alpha": NUMBER,
    "rank_pattern": (dict,), "alpha_pattern": (dict,), "use_rslora": (bool,), "use_dora": (bool,),
    "lora_bias": (bool,), "bias": (str,), "init_lora_weights": (bool, str), "target_modules": (list, str),
    "exclude_modules": (list, str), "layers_to_transform": (list, int), "layers_pattern": (list, str),
    "modules_to_save": (list,), "ensure_weight_tying": (bool,),
}  # fmt: skip
# types of what lists of them hold
ELEMENTS: dict[str, tuple[type, ...]] = dict.fromkeys(
    ("target_modules", "exclude_modules", "layers_pattern", "modules_to_save"), (str,)
) | {"layers_to_transform": (int,)}
REQUIRED = ("base_model_name_or_path", "r", "lora_alpha")
# keys about how an adapter was trained, about its file, or whose matter the base's own matrix decides (fan_in_fan_out)
WITHOUT_EFFECT = {
    "task_type", "auto_mapping", "peft_version", "inference_mode", "lora_dropout", "fan_in_fan_out", "megatron_config",
    "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config", "runtime_config",
    "qalora_group_size", "merge_weights",
}  # fmt: skip
EMPTY: tuple[Any, ...] = (None, False, [], {})  # what a key asks for nothing with
# beginnings of A and B that leave the base as it is, and those that take their product away from it
PLAIN_BEGINNINGS, RESIDUAL_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal", "mica"), ("pissa", "olora")
BIASES = ("none", "all", "lora_only")
MAX_NUMBER = 2**53  # of ranks and alphas
MAX_SECONDS, MAX_BYTES = 2.0, 2**24  # that it may take to find the modules that are named, and the answer may have
MERGE, REWRITE = "merge it in peft", "write it again with save_pretrained"
_look_up = Confined("archetype.convert.peft.names", 2**29)


@dataclass(frozen=True)
class PeftConfig:
    """What an adapter_config.json says.

    Attributes:
        file: the file.
        values: by key; keys of null are left out.
    """

    file: Path
    values: Mapping[str, Any]

    @property
    def weights(self) -> Path:
        """The file of the adapter's tensors."""
        return self.file.with_name(WEIGHTS)

    @property
    def base(self) -> str:
        """The base model's name or path."""
        return str(self.values["base_model_name_or_path"])

    @property
    def residual(self) -> str | None:
        """How the product was found that the base lost as training began; None where it lost none."""
        name = self.values.get("init_lora_weights", True)
        return name if name in RESIDUAL_BEGINNINGS else None

    def saves(self, module: str) -> bool:
        """Whether a module was copied and trained whole."""
        return any(module.endswith(name) for name in self.values.get("modules_to_save", ()))

    def scale(self, module: "Named") -> float:
        """The factor of a module's B A."""
        return module.alpha / (math.sqrt(module.rank) if self.values.get("use_rslora") else module.rank)

    def look_up(self, modules: Iterable[str]) -> "tuple[dict[str, Named], bool]":
        """What the configuration says of modules.

        Args:
            modules: names of those that have adapters in the file of tensors.

        Returns:
            By module; and whether a head that shares the embedding's table shares what became of it, too: where peft
            knows its name.

        Raises:
            CheckpointError: names the key with a wrong regular expression; or the expressions take too long.
        """
        names = list(modules)
        try:
            said = _look_up(self.values, names, seconds=MAX_SECONDS, max_bytes=MAX_BYTES)
        except ConfinedError as error:
            cause = f"finding the modules that it names {error}"
            raise CheckpointError(str(self.file), cause, "simplify its regular expressions") from None
        if "wrong" in said:
            key, expression = said["wrong"]
            _refuse(self, key, f"{expression!r} is no regular expression", REWRITE)
        ties = said["ties"] and bool(self.values.get("ensure_weight_tying"))
        return {name: Named(*values) for name, values in zip(names, said["modules"], strict=True)}, ties


class Named(NamedTuple):
    """What a configuration says of one module: the sizes of its adapter, and whether peft gives it one."""

    rank: int
    alpha: float
    is_adapted: bool


def read_config(folder: Path) -> PeftConfig:
    """The adapter_config.json of a folder.

    Raises:
        CheckpointError: names the key that is damaged, unknown, or asks for what is not computed here.
    """
    values = {key: value for key, value in read_json(folder / CONFIG).items() if value is not None}
    config = PeftConfig(folder / CONFIG, values)
    if (kind := values.get("peft_type")) != "LORA":
        _refuse(config, "peft_type", f"is of kind {kind!r:.40}, and only LORA is read here", MERGE)
    for key, value in values.items():
        if key in READ:
            if not _is_of(value, READ[key]):
                _refuse(config, key, "is missing or damaged", REWRITE)
        elif key not in WITHOUT_EFFECT and value not in EMPTY:
            _refuse(config, key, f"{value!r:.60} is not computed here", MERGE)
    for key in REQUIRED:
        if not values.get(key):
            _refuse(config, key, "is missing or damaged", REWRITE)
    _check_values(config)
    return config


def _check_values(config: PeftConfig) -> None:
    """Refuse what types do not say."""
    values, beginning = config.values, config.values.get("init_lora_weights", True)
    if values.get("bias", "none") not in BIASES:
        _refuse(config, "bias", f"{values['bias']!r:.60} is not computed here", MERGE)
    if beginning not in (*PLAIN_BEGINNINGS, *RESIDUAL_BEGINNINGS):
        cause = f"{beginning!r:.40} took from the base what cannot be computed again"
        _refuse(config, "init_lora_weights", cause, "save it with path_initial_model_for_weight_conversion")
    base = Path(config.base)
    local = base.is_dir() or (config.file.parent / base).is_dir()
    if (revision := values.get("revision", "main")) != "main" and not local:
        cause = f"{revision!r:.40} of the base is not fetched here"
        _refuse(config, "revision", cause, "download it, and name its folder as the base")
    if not 0 < values["r"] <= MAX_NUMBER:
        _refuse(config, "r", f"{values['r']!r:.40} is no rank", REWRITE)
    if not abs(values["lora_alpha"]) <= MAX_NUMBER:
        _refuse(config, "lora_alpha", f"{values['lora_alpha']!r:.40} is no factor", REWRITE)
    for key, types in ELEMENTS.items():
        listed = values[key] if isinstance(values.get(key), list) else []
        for value in listed:
            if not _is_of(value, types):
                _refuse(config, key, f"{value!r:.40} is neither a name nor a layer's number", REWRITE)
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern, value in values.get(key, {}).items():
            if not _is_of(value, READ["r" if key == "rank_pattern" else "lora_alpha"]) or not 0 < value <= MAX_NUMBER:
                _refuse(config, f"{key}.{pattern}", f"{value!r:.40} is no positive number", REWRITE)


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    """Whether a value is of one of some types; a boolean is no number."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _refuse(config: PeftConfig, key: str, cause: str, remedy: str) -> NoReturn:
    raise CheckpointError(f"{config.file}: {key}", cause, remedy)
