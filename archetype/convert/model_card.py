"""README.md of an exported folder: description, cost, evaluation and how to load the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archetype import __version__
from archetype.diagram import Drawing
from archetype.diagram.architecture import draw
from archetype.errors import one_line
from archetype.estimate.report import comparison_table, cost_report
from archetype.families import Family
from archetype.families.own import OWN
from archetype.io import atomic
from archetype.io.yaml import mapping_to_yaml
from archetype.models.spec import ModelSpec

MODEL_CARD, DRAWING = "README.md", "architecture.svg"


@dataclass(frozen=True)
class ModelCard:
    """Facts in a model card beyond the specification. Training data and licence are unknown and not mentioned.

    Attributes:
        name: name for loading the model: owner/name, or a folder.
        revision: branch on huggingface.co (default: main).
        evaluation: last evaluation in the run's metrics; empty if there is none.
    """

    name: str = "PATH"
    revision: str | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)

    def write(self, model: ModelSpec, family: Family, folder: Path) -> None:
        """Write the model card and its drawing."""
        report = cost_report(model)
        Drawing(draw(report)).save(folder / DRAWING)
        costs = comparison_table(["bfloat16"], [report])
        text = f"""---
{self._metadata(model, family)}---

# {one_line(model.name, 80) or family.name}

A model of kind {model.kind} with {report.parameters["total"]:,} parameters and {model.num_layers} layers, in the format
of {family.format.architecture_of(model)}. Written by Archetype {__version__}.
{self._evaluation()}
![The architecture, from its input at the bottom to its output at the top]({DRAWING})

## Load

{self._commands(model, family)}
## Cost

```text
{costs}
```

## Specification

```yaml
{mapping_to_yaml(model.dump())}```
"""
        atomic.write_bytes(folder / MODEL_CARD, text.encode())

    def _metadata(self, model: ModelSpec, family: Family) -> str:
        # front matter, from which the hub reads library and task
        library, task, tags = "transformers", "text-generation" if model.continues_text else None, ["archetype"]
        if model.head.embeds:
            library, task = "sentence-transformers", "sentence-similarity"
            tags.append(library)
        tagged = {"tags": sorted({family.format.model_type, *tags})}
        data = {"library_name": library} | ({"pipeline_tag": task} if task else {}) | tagged
        return mapping_to_yaml(data)

    def _evaluation(self) -> str:
        if not self.evaluation:
            return ""
        figures = [f"{self.evaluation['validation_loss']:.4f} nats"]
        if (accuracy := self.evaluation.get("validation_accuracy")) is not None:
            figures.append(f"{accuracy:.1%} accuracy")
        if (bits := self.evaluation.get("validation_bits_per_byte")) is not None:
            figures.append(f"{bits:.4f} bits per byte")
        return f"\nValidation loss after {self.evaluation['step']:,} training steps: {', '.join(figures)}.\n"

    def _commands(self, model: ModelSpec, family: Family) -> str:
        architecture = family.format.architecture_of(model)
        module = "archetype.hf" if family is OWN else "transformers"
        revision = "" if self.revision is None else f', revision="{self.revision}"'
        name = self.name if self.revision is None else f"{self.name}@{self.revision}"
        loading = f'{architecture}.from_pretrained("{self.name}"{revision})'
        if model.head.embeds:  # config.json names a class without this head
            module, architecture = "sentence_transformers", "SentenceTransformer"
            loading = f'SentenceTransformer("{self.name}"{revision})'
        return f"""```python
from {module} import {architecture}

model = {loading}
```

```python
import archetype

lm = archetype.load("{name}")
```

```sh
archetype show {name}
```
"""
