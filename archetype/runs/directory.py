"""Run directory: specification, recipe, tokenizer, weights, metrics and checkpoints under fixed names."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor

from archetype.convert.apply import load_tensors
from archetype.errors import CheckpointError, errors_at
from archetype.families.rules import Rule
from archetype.io import atomic
from archetype.io.tensors import Tensors, save
from archetype.io.weight_files import SINGLE
from archetype.io.yaml import mapping_to_yaml, read_mapping, with_schema_line
from archetype.models.build import Model, build_on_meta
from archetype.models.file import read
from archetype.models.spec import ModelSpec
from archetype.nn.parameter_names import TRAINING_ONLY
from archetype.parts.adapter import module as adapters
from archetype.parts.adapter.spec import Adapter
from archetype.runs.checkpoints import latest
from archetype.runs.extensions import FILE as EXTENSIONS
from archetype.runs.extensions import check_extensions, write_extensions
from archetype.spec.base import Spec
from archetype.spec.kinds import ByKind
from archetype.spec.serialize import to_yaml
from archetype.weights.packed_file import install_packed


class AdaptedModel(Spec):
    """Contents of adapter.yaml. The adapter's tensors are saved with the model's weights.

    Attributes:
        adapter: kind and sizes of the adapter.
        base: name of the pretrained model, as the user gave it.
    """

    adapter: Annotated[Adapter, ByKind(Adapter)]
    base: str = ""


class Run:
    """Paths of a run directory.

    Attributes:
        sentence_folder: files in the format of sentence-transformers, such as prompts and truncation.
        weights_file: final weights.
        left_out_file: weights of the imported folder that this model does not use.
        metrics_file: one JSON object per line.
        provenance_file: recipe and data at the start of the run, compared when it is resumed.
        trackers_file: id of this run in each experiment tracker.
        report_file: the run's report as a self-contained HTML page.
        best_folder: run directory with the weights of the lowest validation loss.
        adapter_file: present if the model has an adapter.
        prepared_file: tensors that the objective computed before the first step, such as reference log-probabilities.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec_file = folder / "spec.yaml"
        self.recipe_file = folder / "recipe.yaml"
        self.tokenizer_folder = folder / "tokenizer"
        self.sentence_folder = folder / "sentence"
        self.weights_file = folder / SINGLE
        self.left_out_file = folder / "left_out.safetensors"
        self.metrics_file = folder / "metrics.jsonl"
        self.loss_picture = folder / "loss.png"
        self.checkpoints = folder / "checkpoints"
        self.provenance_file = folder / "provenance.json"
        self.trackers_file = folder / "trackers.json"
        self.report_file = folder / "report.html"
        self.best_folder = folder / "best"
        self.adapter_file = folder / "adapter.yaml"
        self.prepared_file = folder / "prepared.safetensors"

    @property
    def exists(self) -> bool:
        # the specification is what makes a folder a run directory
        return self.spec_file.is_file()


def read_run_spec(run: Run) -> ModelSpec:
    """Read the specification of a run. The extensions that it needs must be loaded."""
    check_extensions(run.folder)
    return read(run.spec_file)


def write_run_spec(run: Run, spec: ModelSpec, *settings: Spec) -> None:
    """Write the specification of a run, and record the extensions that it and `settings` need."""
    write_extensions(run.folder, [spec, *settings])
    atomic.write_bytes(run.spec_file, with_schema_line(to_yaml(spec), "specification").encode())


def read_run_model(
    run: Run, dtype: torch.dtype | None = None, device: torch.device | None = None, merged: bool = True
) -> Model:
    """Load a run's model from its final weights or newest undamaged checkpoint. Merge its adapter by default."""
    model = build_on_meta(read_run_spec(run))
    if (adapted := read_adapter(run)) is not None:
        # before the weights are read: the adapter's tensors are among them
        adapters.install(model, adapted.adapter)
    fill_from(model, weights_of(run), dtype, device)
    if merged:
        adapters.merge(model)
    return model.eval()


def read_adapter(run: Run) -> AdaptedModel | None:
    """Read adapter.yaml of a run; None if the model has no adapter."""
    if not run.adapter_file.is_file():
        return None
    data = read_mapping(run.adapter_file)
    with errors_at(str(run.adapter_file)):
        return AdaptedModel.parse(data)


def write_adapter(run: Run, adapted: AdaptedModel) -> None:
    atomic.write_bytes(run.adapter_file, mapping_to_yaml(adapted.dump(full=True)).encode())


def weights_of(run: Run) -> Path:
    """Return the file of final weights, or without it the weights in the newest undamaged checkpoint."""
    if run.weights_file.is_file():
        return run.weights_file
    if (checkpoint := latest(run.checkpoints)) is not None:
        # with a moving average, the average is the run's model
        return checkpoint.average_file or checkpoint.weights_file
    raise CheckpointError(str(run.folder), "has no weights yet", "train it further with `archetype train --resume`")


def fill_from(model: Model, file: Path, dtype: torch.dtype | None = None, device: torch.device | None = None) -> None:
    """Fill a model on the meta device from a file with Archetype's parameter names."""
    try:
        tensors = Tensors.single(file)
        # quantized matrices replace parameters of the model; the other tensors are read by name
        packed = install_packed(model, tensors, dtype, device)
        names = [name for name in model.state_dict() if not any(re.fullmatch(pattern, name) for pattern in packed)]
        # a checkpoint has the parameters of training, which the model has only while it is trained
        ignored = [*packed, rf"{TRAINING_ONLY}\..+"]
        load_tensors(model, tensors, [Rule(name, (name,)) for name in names], ignored, dtype, device)
    except CheckpointError as error:
        # errors of a tensor name only the tensor
        raise error if error.place == str(file) else error.at(str(file)) from None


def write_weights(run: Run, model: Model, instead: Mapping[str, Tensor] = MappingProxyType({})) -> None:
    """Write the final weights under Archetype's names. Tensors in `instead` replace those of the model."""
    tensors = {**model.state_dict(), **instead}
    save(run.weights_file, {name: tensor for name, tensor in tensors.items() if not name.startswith(TRAINING_ONLY)})


def write_best(run: Run, model: Model, instead: Mapping[str, Tensor] = MappingProxyType({})) -> None:
    """Write the best weights as a run directory inside the run directory."""
    best = Run(run.best_folder)
    if best.exists:
        if (run.folder / EXTENSIONS).is_file():  # the run may have been resumed with other extensions
            atomic.write_bytes(best.folder / EXTENSIONS, (run.folder / EXTENSIONS).read_bytes())
        write_weights(best, model, instead)
        return
    with atomic.new_folder(best.folder) as temporary:
        for path in run.folder.iterdir():
            if path in (run.tokenizer_folder, run.sentence_folder):
                shutil.copytree(path, temporary / path.name)
            # all that loading needs, without the records of this training
            elif path.suffix in (".yaml", ".json", ".jinja") and path not in (run.provenance_file, run.trackers_file):
                shutil.copyfile(path, temporary / path.name)
        write_weights(Run(temporary), model, instead)
