"""transformers model for any specification: `import archetype.hf` registers `archetype` with the Auto classes.

A model folder of this type has the specification in its config.json, the weights under Archetype's names, and the
exported tokenizer.
"""

from archetype.convert.own_code import AUTO
from archetype.distribution import install_command
from archetype.errors import ArchetypeError

try:
    import transformers
except ImportError as error:
    cause = "transformers is not installed"
    raise ArchetypeError("archetype.hf", cause, install_command("hf")) from error

from archetype.hf.causal import ArchetypeForCausalLM
from archetype.hf.classes import (
    ArchetypeForImageClassification,
    ArchetypeForSequenceClassification,
    ArchetypeForTokenClassification,
)
from archetype.hf.configuration import ArchetypeConfig
from archetype.hf.masked import ArchetypeForMaskedLM
from archetype.hf.model import ArchetypeModel
from archetype.hf.pairs import ArchetypeForSeq2SeqLM

__all__ = [
    "ArchetypeConfig",
    "ArchetypeForCausalLM",
    "ArchetypeForImageClassification",
    "ArchetypeForMaskedLM",
    "ArchetypeForSeq2SeqLM",
    "ArchetypeForSequenceClassification",
    "ArchetypeForTokenClassification",
    "ArchetypeModel",
]

transformers.AutoConfig.register(ArchetypeConfig.model_type, ArchetypeConfig, exist_ok=True)
for name, auto in AUTO.items():
    getattr(transformers, auto).register(ArchetypeConfig, globals()[name], exist_ok=True)
