"""Choose the Python class of a loaded model from its specification."""

from archetype.api.causal_lm import CausalLM, DecoderLM
from archetype.api.image_encoder import ImageEncoder
from archetype.api.language_model import LanguageModel
from archetype.api.seq2seq_lm import Seq2SeqLM
from archetype.api.text_classifier import TextClassifier
from archetype.api.text_encoder import TextEncoder
from archetype.models.spec import ModelSpec

KINDS = (CausalLM, DecoderLM, Seq2SeqLM, TextEncoder, TextClassifier, ImageEncoder)


def kind_of(spec: ModelSpec) -> type[LanguageModel]:
    """Return the class whose methods a model with this specification supports."""
    if spec.reads_images:
        return ImageEncoder
    # an encoder-decoder without a target head can only classify
    if spec.reads_source:
        return Seq2SeqLM if spec.writes_target else TextClassifier
    # MegaByte and n-gram models continue texts, but have no vector for each token
    if spec.continues_text:
        return DecoderLM if spec.embeds_tokens else CausalLM
    return TextEncoder if spec.embeds_tokens else LanguageModel
