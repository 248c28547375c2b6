"""The README.md of an exported folder: what the model is, and how to run it."""

from archetype import __version__
from archetype.estimate.report import total_parameters
from archetype.families import Family
from archetype.families.own import OWN
from archetype.models.spec import ModelSpec

MODEL_CARD = "README.md"


def model_card(model: ModelSpec, family: Family) -> str:
    """A model card: the fields that the hub reads, the sizes, and the commands that load it.

    It makes no claim about data or licence, which only the model's maker knows.
    """
    architecture = family.format.architecture_of(model)
    parameters = total_parameters(model)
    module = "archetype.hf" if family is OWN else "transformers"
    return f"""---
library_name: transformers
tags: [{family.format.model_type}, archetype]
---

# {model.name or family.name}

A model of kind {model.kind} with {parameters:,} parameters and {model.num_layers} layers, in the format of
{architecture}. Written by Archetype {__version__}.

```python
from {module} import {architecture}

model = {architecture}.from_pretrained("PATH")
```

```sh
archetype show PATH
```
"""
