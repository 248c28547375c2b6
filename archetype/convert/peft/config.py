"""adapter_config.json: every key is read, known to change no number of a finished adapter, or refused."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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
TIED = ("embed_tokens", "lm_head")  # names of the modules that peft keeps alike where it is asked to
MERGE, REWRITE = "merge it in peft", "write it again with save_pretrained"


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

    @property
    def ties(self) -> bool:
        """Whether a head that shares the embedding's table shares what became of it, too: where peft knows its name."""
        names = self.values.get("target_modules") or ()
        saved = {name.rpartition(".")[2] for name in self.values.get("modules_to_save", ())}
        is_known = any(name in saved or _is_named(name, names) for name in TIED)
        return is_known and bool(self.values.get("ensure_weight_tying"))

    def rank(self, module: str) -> int:
        """The rank of a module's adapter."""
        return int(self._of_pattern("rank_pattern", module, "r"))

    def scale(self, module: str) -> float:
        """The factor of a module's B A."""
        rank = self.rank(module)
        alpha = float(self._of_pattern("alpha_pattern", module, "lora_alpha"))
        return alpha / (math.sqrt(rank) if self.values.get("use_rslora") else rank)

    def saves(self, module: str) -> bool:
        """Whether a module was copied and trained whole."""
        return any(module.endswith(name) for name in self.values.get("modules_to_save", ()))

    def targets(self, module: str) -> bool:
        """Whether peft gives a module of this name an adapter."""
        if _is_named(module, self.values.get("exclude_modules", ())) or any(
            re.match(rf"(^|.*\.){name}($|\..*)", module) for name in self.values.get("modules_to_save", ())
        ):
            return False
        names = self.values.get("target_modules")
        if names is None or (isinstance(names, str) and names.lower() == "all-linear"):
            return True  # known to peft's table of models, or by the class of the module
        if not _is_named(module, names):
            return False
        layers = self.values.get("layers_to_transform")
        if isinstance(names, str) or module in names or layers is None or layers == []:
            return True
        patterns = _listed(self.values.get("layers_pattern") or r"[^.]*")
        prefix = r"(?:^|.*?\.)" if self.values.get("layers_pattern") else r".*?\."
        match = next(filter(None, (re.match(rf"{prefix}{name}\.(\d+)\.", module) for name in patterns)), None)
        return match is not None and int(match[1]) in _listed(layers)

    def _of_pattern(self, patterns: str, module: str, default: str) -> Any:
        """The value of the first pattern that ends a module's name."""
        for pattern, value in self.values.get(patterns, {}).items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        return self.values[default]


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
    for key in ("rank_pattern", "alpha_pattern"):
        for pattern, value in values.get(key, {}).items():
            if not _is_of(value, READ["r" if key == "rank_pattern" else "lora_alpha"]) or value <= 0:
                _refuse(config, f"{key}.{pattern}", f"{value!r:.40} is no positive number", REWRITE)
    for key in ("rank_pattern", "alpha_pattern", "target_modules", "exclude_modules", "layers_pattern"):
        for pattern in values.get(key, {}) if key.endswith("_pattern") else [values.get(key)]:
            if isinstance(pattern, str) and not _compiles(pattern):
                _refuse(config, key, f"{pattern!r:.60} is no regular expression", REWRITE)


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    """Whether a value is of one of some types; a boolean is no number."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _is_named(module: str, names: Iterable[str] | str) -> bool:
    """Whether a module's name matches an expression, or ends with one of some names."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _refuse(config: PeftConfig, key: str, cause: str, remedy: str) -> NoReturn:
    raise CheckpointError(f"{config.file}: {key}", cause, remedy)
