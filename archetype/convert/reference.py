"""transformers as the reference: its class for a config.json, its model of a folder, and the shapes of its tensors."""

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from archetype.convert.infer import Shapes
from archetype.errors import DataError, one_line
from archetype.families.classes import TEXTS, TOKENS
from archetype.io.yaml import read_mapping


def reference_class(values: Mapping[str, Any], place: str) -> Any:
    """Return the transformers class named in a config.json, or the class for its model type.

    Code in the folder is never run. If the file names a class of such code, the model type decides (Sarvam's type is
    that of GLM-4).

    Raises:
        DataError: transformers is not installed, or has no class for the model type.
    """
    try:
        import transformers
    except ImportError:
        raise DataError("transformers", "is not installed", "pip install transformers") from None
    names, library = values.get("architectures"), cast("Any", transformers)
    name, kind = str(names[0]) if isinstance(names, list) and names else "", str(values.get("model_type"))
    is_known = kind in library.CONFIG_MAPPING
    model_class = getattr(library, name, None) if is_known or not values.get("auto_map") else None
    if isinstance(model_class, type) and issubclass(model_class, library.PreTrainedModel):
        return model_class
    endings = [ending for ending in (TEXTS, TOKENS) if name.endswith(ending)] or ["ForCausalLM", "ForImageTextToText"]
    for auto in (getattr(library, f"AutoModel{ending}") for ending in endings if is_known):
        if library.CONFIG_MAPPING[kind] in auto._model_mapping:
            return auto
    cause = f"names the class {name!r}, which transformers does not have" if name else "names no class"
    raise DataError(f"{place}: architectures", cause, "name the class that reads this folder")


def read_configuration(model_class: Any, folder: Path) -> tuple[Any, Callable[[Any], Any]]:
    """Return the configuration of a folder and a function that builds an untrained model from it."""
    from transformers import CONFIG_MAPPING

    kind = str(read_mapping(folder / "config.json").get("model_type"))
    config_class = getattr(model_class, "config_class", None)  # None for an Auto class
    if kind in CONFIG_MAPPING:
        config_class = CONFIG_MAPPING[kind]
    assert config_class is not None
    config = config_class.from_pretrained(folder)
    if hasattr(model_class, "from_config"):  # an Auto class
        return config, model_class.from_config
    if not isinstance(config, model_class.config_class):
        config = config.get_text_config(decoder=True)
    return config, model_class._from_config


@contextmanager
def quiet_reference() -> Iterator[None]:
    """Set transformers to log only errors."""
    from transformers import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_reference(folder: Path, dtype: torch.dtype | None) -> nn.Module:
    """Load the model with the transformers class that config.json names."""
    file = folder / "config.json"
    model_class = reference_class(json.loads(file.read_bytes()), str(file))
    try:
        with quiet_reference():
            model: Any = model_class.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(str(folder), f"transformers cannot read it: {' '.join(str(error).split())}") from None
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # one pass needs no cache, and not every class can build one
    return model.eval()


def shapes_by_class(values: Mapping[str, Any], place: str) -> Shapes:
    """Return the shape of each tensor of a model, by the name that transformers saves it under. Nothing is allocated.

    Args:
        values: config.json of the model, without the settings of its quantization.
        place: path of the file, for error messages.

    Raises:
        DataError: transformers is not installed, has no class for the model type, or cannot build the model.
    """
    model_class = reference_class(values, place)
    from transformers.core_model_loading import revert_weight_conversion

    with tempfile.TemporaryDirectory() as folder, quiet_reference(), warnings.catch_warnings(action="ignore"):
        (Path(folder) / "config.json").write_text(json.dumps(values), encoding="utf-8")
        try:
            config, make = read_configuration(model_class, Path(folder))
            with torch.device("meta"):
                model: Any = make(config)
        except Exception as error:  # a class may raise anything for keys it was not written for
            raise DataError(place, f"is refused by transformers: {one_line(str(error), 160)}", "fix the file") from None
        computed = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        left_out = computed | set(model.all_tied_weights_keys)
        saved = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
        return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, saved).items()}
