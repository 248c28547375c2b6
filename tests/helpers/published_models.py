"""Configurations and headers of models as they were published, and what becomes of each here.

The files are data for tests beside the checkout. A family that is registered needs its config.json alone; of another
the tensors' names and shapes are needed too: those of a pinned header, else those that transformers would save.
"""

import csv
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from archetype.convert.infer import Shapes, read_unknown
from archetype.convert.infer.names import prediction_tensors
from archetype.cost import total_parameters
from archetype.errors import ArchetypeError
from archetype.families.family import Family
from archetype.families.registry import family_of
from archetype.gallery.card import published_digits
from archetype.io.low_bit.header import plain_header
from archetype.io.low_bit.settings import read_settings, without_settings
from archetype.io.weight_files import Header, TensorHeader
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from tests.helpers.own_code import OWN

# Numbers that are read with the weights and are none: no gradient reaches them.
NOT_TRAINED = (
    r".*(e_score_correction_bias|expert_bias|router_bias|moe_statics.*|act_fn\.(beta|eps)|ffn\.gate\.(bias|tid2eid))"
)
# Tables that files hold and that every library computes.
COMPUTED = r".*\.(inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids)"
NESTED = "language_model."  # before the tensors of a part that reads text, where transformers lacks the whole
DATA = Path("published")


@dataclass(frozen=True)
class PublishedModel:
    """A configuration as it was published.

    Attributes:
        name: owner and name.
        file: of the configuration, without its folder.
        values: of the configuration.
        claim: of its makers or of those who list it: how many parameters it has; empty where none is pinned.
    """

    name: str
    file: str
    values: dict[str, Any]
    claim: str

    @property
    def type(self) -> str:
        """The model type in config.json."""
        return str(self.values.get("model_type"))


@dataclass(frozen=True)
class Reading:
    """What became of a configuration.

    Attributes:
        status: read and costed, refused, or not tried, for neither a header nor transformers says its tensors.
        by: what it was read by.
        total: parameters that are counted here.
        beside: what the total is compared with, and how they compare.
        differs: by how many a header, or transformers, has other numbers; None where neither is known.
        said: why it was refused.
    """

    model: PublishedModel
    status: Literal["read", "refused", "not tried"]
    by: str
    total: int | None = None
    beside: tuple[str, ...] = ()
    differs: int | None = None
    said: str = ""


# Why transformers has other numbers than the files.
EXPLAINED = {
    "google__t5-v1_1-base.json": "the head's table, which transformers 5 ties whatever the file says",
    "google__mt5-large.json": "the head's table, which transformers 5 ties whatever the file says",
}


def published_models(shared: Path) -> Iterator[PublishedModel]:
    """All pinned configurations."""
    with (shared / DATA / "MANIFEST.csv").open(encoding="utf-8") as manifest:
        for row in csv.DictReader(manifest):
            if row["part"] == "config":
                values = json.loads((shared / DATA / row["file"]).read_text())
                claim = "" if row["params"].isdigit() else row["params"].split(",")[0]
                yield PublishedModel(row["model"], Path(row["file"]).name, values, claim)


@cache
def headers(shared: Path) -> Mapping[str, Header]:
    """The pinned headers with shapes, by the file of their configuration."""
    by_config = {}
    for file in sorted((shared / DATA / "headers_derived").glob("*.header.json")):
        entries = json.loads(file.read_text())
        config = entries.pop("__metadata__")["config"]
        by_config[config] = {
            name: TensorHeader(entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()
        }
    return by_config


def read_published(shared: Path, model: PublishedModel) -> Reading:
    """Read one configuration, count its parameters, and compare them with what else says how many there are."""
    values, pinned = without_settings(model.values), headers(shared).get(model.file)
    header = None if pinned is None else _plain(pinned, model.values)
    source = "its header"
    if header is None:
        header, source = shapes_by_transformers(values), "transformers' tensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            family = family_of(values)
            by = "its keys" if family is not None else f"its keys and {source}"
            if family is None and header is None:
                said = "a type with code of its own, whose tensors are not pinned"
                return Reading(model, "not tried", "", said=said)
            family = family or read_unknown(values, header or {})
            spec = family.format.spec_from(values)
            total = total_parameters(spec)
        except ArchetypeError as error:
            return Reading(model, "refused", "", said=str(error).removeprefix("config.json: "))
    beside, differs = [], None
    if header is not None:
        differs = _numbers(header, family) - total
        why = f": {EXPLAINED[model.file]}" if model.file in EXPLAINED and differs else ""
        compared = f"{abs(differs):,} {'more' if differs > 0 else 'less'} there{why}" if differs else "equal"
        beside.append(f"{'header' if pinned is not None else 'transformers'}: {compared}")
    if (size := listed_size(shared, model)) is not None:
        beside.append(f"listing of {size:,} bytes: {size / total:.2f} a parameter")
    if model.claim:
        left_out = 0 if family.reading is None else sum(prod((header or {})[name]) for name in family.reading.left_out)
        equal = is_published_as(total, model.claim) or is_published_as(total + left_out, model.claim)
        digits = "equal to its digits" if equal else "DIFFERS"
        if not equal and isinstance(spec, Decoder) and not spec.head.tied:  # as Kimi Linear is published
            tables = 2 * spec.vocab_size * spec.d_model
            digits = (
                "equal to its digits without the tables" if is_published_as(total - tables, model.claim) else digits
            )
        beside.append(f"published as {model.claim.removesuffix(' total').removesuffix(' parameters')}: {digits}")
    return Reading(model, "read", by, total, tuple(beside), differs)


def is_published_as(total: int, claim: str) -> bool:
    """Whether a count is a published one, such as 671B total, to the digits that this gives."""
    match = re.search(r"\d[\d.]*[MBT]\b", claim)
    assert match is not None, claim
    return published_digits(total, match[0])


def spec_of(shared: Path, model: PublishedModel) -> ModelSpec:
    """The specification of a configuration that is read."""
    values, pinned = without_settings(model.values), headers(shared).get(model.file)
    if (family := family_of(values)) is None:
        family = read_unknown(
            values, shapes_by_transformers(values) or {} if pinned is None else _plain(pinned, model.values)
        )
    return family.format.spec_from(values)


@cache
def _listings(shared: Path) -> Mapping[str, int]:
    """Bytes of all weights, by model, as an index or a pointer to a large file says them."""
    sizes = {}
    with (shared / DATA / "MANIFEST.csv").open(encoding="utf-8") as manifest:
        for row in csv.DictReader(manifest):
            if row["part"] == "header" and row["kind"] == "index":
                values = json.loads((shared / DATA / row["file"]).read_text())
                sizes[row["model"]] = int(float(values["metadata"]["total_size"]))
            elif row["part"] == "header" and row["kind"].startswith("LFS"):
                files = json.loads((shared / DATA / row["file"]).read_text())
                named = [files[name]["bytes"] for name in ("model.safetensors", "pytorch_model.bin") if name in files]
                sizes |= {row["model"]: named[0]} if named else {}
    return sizes


def listed_size(shared: Path, model: PublishedModel) -> int | None:
    """Bytes of a model's weights in their listing; None where it has a header with shapes, or no listing."""
    return None if model.file in headers(shared) else _listings(shared).get(model.name)


def _plain(header: Header, values: dict[str, Any]) -> Shapes:
    settings = read_settings(values)
    plain = header if settings is None else plain_header(header, settings)
    return {name: tensor.shape for name, tensor in plain.items()}


def _numbers(shapes: Shapes, family: Family) -> int:
    """How many numbers of a file the model has: all but those that are left out, computed, or not trained."""
    left_out = set(family.reading.left_out if family.reading else prediction_tensors(shapes))
    others = re.compile(f"{NOT_TRAINED}|{COMPUTED}")
    return sum(prod(shape) for name, shape in shapes.items() if name not in left_out and not others.fullmatch(name))


def shapes_by_transformers(values: dict[str, Any]) -> Shapes | None:
    """The tensors that transformers would save of a configuration; None where it has no such class.

    Of a model whose type it lacks the part that reads text may be of a class that it has (Kimi K2.5), or another class
    may have its equations under other names.
    """
    if (own := OWN.get(str(values.get("model_type")))) is not None:
        as_class, as_file = own
        shapes = shapes_by_transformers(as_class(values)) or {}
        tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        return {name: tuple(tensor.shape) for name, tensor in as_file(tensors, values).items()}
    if (config := _config(values)) is not None and (model := _on_meta(config, values)) is not None:
        return _saved(model)
    text = values.get("text_config")
    names = text.get("architectures") if isinstance(text, dict) else None
    kind = getattr(transformers, str((names or [""])[0]), None)
    if not isinstance(text, dict) or kind is None:
        return None
    model = _on_meta(kind.config_class.from_dict(text), text)
    return None if model is None else {f"{NESTED}{name}": shape for name, shape in _saved(model).items()}


def _config(values: dict[str, Any]) -> PreTrainedConfig | None:
    kind = CONFIG_MAPPING[values["model_type"]] if values.get("model_type") in CONFIG_MAPPING else None
    try:
        return None if kind is None else kind.from_dict(deepcopy(values))  # which Kimi K2.5's class changes
    except KeyError:  # a scaling that this version no longer knows ("su")
        return None


def _on_meta(config: PreTrainedConfig, values: dict[str, Any]) -> PreTrainedModel | None:
    """The model without numbers, of the class that the file names in whatever case."""
    class_name = str((values.get("architectures") or [""])[0]).lower()
    name = next((name for name in dir(transformers) if name.lower() == class_name), None)
    with torch.device("meta"):
        if name is not None and isinstance(config, getattr(transformers, name).config_class):
            model: PreTrainedModel = getattr(transformers, name)(config)
        elif class_name.endswith("causallm") and type(config) in AutoModelForCausalLM._model_mapping:
            model = AutoModelForCausalLM.from_config(config)
        else:
            return None
    return model


def _saved(model: PreTrainedModel) -> Shapes:
    """The tensors of a model under the names that it is saved with, each once, but for those that are computed."""
    tied = set(model.all_tied_weights_keys)
    tied |= {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}
