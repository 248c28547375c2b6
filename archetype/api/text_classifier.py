"""Models that classify texts."""

from pathlib import Path

from torch import Tensor

from archetype import evaluation, generate
from archetype.api.language_model import LanguageModel
from archetype.errors import SpecError
from archetype.evaluation import ClassReport, ValueReport
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder


class TextClassifier(LanguageModel):
    """Model whose head may classify whole texts. An encoder-decoder reads a text as both source and target."""

    model: Encoder | Decoder | EncoderDecoder

    @property
    def _purpose(self) -> str:
        return "classify texts"

    def classify(self, texts: str | list[str]) -> Tensor:
        """Return class probabilities of texts, (B, classes), or the values of a regression head, (B, 1).

        Raises:
            ArchetypeError: the head has no classes, or a text is empty or too long.
        """
        return generate.classify_texts(self.model, self._tokenizer(), texts, self.target_start)[0]

    def evaluate(self, data: str | Path) -> ClassReport | ValueReport:
        """Evaluate the model on labelled texts.

        Args:
            data: JSON lines or CSV with fields text and label.

        Raises:
            ArchetypeError: the head has no classes, or the data are invalid.
        """
        if not self.spec.head.classifies:
            raise SpecError("data", "the model has no classes, values or targets", "evaluate the model on plain text")
        return evaluation.evaluate_texts(self.model, self._tokenizer(), Path(data), self.labels, self.target_start)
