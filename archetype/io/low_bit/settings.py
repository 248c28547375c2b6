"""Search for a folder's quantization settings, in config.json or in a file written by the quantization tool."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archetype.errors import CheckpointError
from archetype.io.low_bit.registry import Settings
from archetype.io.weight_files import NAMED
from archetype.io.yaml import read_mapping

KEYS = ("quantization_config", "compression_config")
MODELOPT = "hf_quant_config.json"
# Files of older tools, and the method of a file that names none.
FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
SPELLINGS = {"w_bit": "bits", "q_group_size": "group_size"}


def read_settings(config: Mapping[str, Any], folder: Path | None = None) -> Settings | None:
    """Return the quantization settings of a checkpoint; None if it is not quantized.

    Args:
        config: contents of config.json.
        folder: folder to search for other files (default: only config.json is read).
    """
    # multimodal models keep the settings of their text part there
    text = config.get("text_config")
    for section in (config, text if isinstance(text, dict) else {}):
        for key in KEYS:
            if (value := section.get(key)) is not None:
                return _settings(key, value)
    if folder is None:
        return None
    if (folder / MODELOPT).is_file():
        return _settings(MODELOPT, read_mapping(folder / MODELOPT))
    for name, method in FILES.items():
        if (folder / name).is_file():
            return {"quant_method": method, **_settings(name, read_mapping(folder / name))}
    return None


def without_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: without_settings(value) if key == "text_config" and isinstance(value, dict) else value
        for key, value in config.items()
        if key not in (*KEYS, NAMED)
    }


def _settings(field: str, value: Any) -> Settings:
    if not isinstance(value, dict):
        raise CheckpointError(field, f"{value!r} is not a mapping", "fix the file")
    inner = value.get("quantization")  # of hf_quant_config.json
    settings = {**value, **inner} if isinstance(inner, dict) else dict(value)
    if "quant_method" not in settings and settings.get("quant_algo") is not None:
        settings["quant_method"] = "modelopt"
    return {SPELLINGS.get(key, key): item for key, item in settings.items()}
