"""Architecture workbench for language models: costs, models, training and generation from one specification.

    spec = archetype.load_spec("llama-2-7b")    # preset, YAML or JSON file, Hugging Face folder, run directory, or dict
    report = archetype.cost_report(spec, batch=1, length=4096)
    model = archetype.build(spec)               # a torch.nn.Module, randomly initialised
    lm = archetype.load("folder")               # .spec .model .tokenizer, and the methods of its kind of model
    lm = archetype.CausalLM.load("folder")      # the same for type checkers: .generate(...) .stream(...) .chat(...)

Modules are imported on first use: specifications and costs never load torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archetype.api.causal_lm import CausalLM, DecoderLM
    from archetype.api.extension import register
    from archetype.api.functions import (
        build,
        cost_report,
        diff,
        draw,
        evaluate,
        export,
        from_pretrained,
        load,
        load_spec,
        presets,
        tokenizer,
        train,
        transplant,
    )
    from archetype.api.image_encoder import ImageEncoder
    from archetype.api.language_model import LanguageModel
    from archetype.api.seq2seq_lm import Seq2SeqLM
    from archetype.api.text_classifier import TextClassifier
    from archetype.api.text_encoder import TextEncoder
    from archetype.errors import ArchetypeError
    from archetype.generate.engine import Engine
    from archetype.native.kernels import plain_operations

__version__ = "0.1.0"
__all__ = [
    "ArchetypeError", "CausalLM", "DecoderLM", "Engine", "ImageEncoder", "LanguageModel", "Seq2SeqLM", "TextClassifier",
    "TextEncoder", "__version__", "build", "cost_report", "diff", "draw", "evaluate", "export", "from_pretrained",
    "load", "load_spec", "plain_operations", "presets", "register", "tokenizer", "train",
    "transplant",
]  # fmt: skip

if not TYPE_CHECKING:  # otherwise a type checker would accept any attribute

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name not in __all__:
            raise AttributeError(f"module 'archetype' has no attribute {name!r}")
        modules = {
            "ArchetypeError": "archetype.errors",
            "CausalLM": "archetype.api.causal_lm",
            "DecoderLM": "archetype.api.causal_lm",
            "Engine": "archetype.generate.engine",
            "ImageEncoder": "archetype.api.image_encoder",
            "LanguageModel": "archetype.api.language_model",
            "Seq2SeqLM": "archetype.api.seq2seq_lm",
            "TextClassifier": "archetype.api.text_classifier",
            "TextEncoder": "archetype.api.text_encoder",
            "plain_operations": "archetype.native.kernels",
            "register": "archetype.api.extension",
        }
        return getattr(import_module(modules.get(name, "archetype.api.functions")), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
