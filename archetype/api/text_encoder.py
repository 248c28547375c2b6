"""Models that read whole texts: encoders, and decoders without a language model head."""

from pathlib import Path

from archetype import evaluation, generate
from archetype.api.text_classifier import TextClassifier
from archetype.api.text_embedder import TextEmbedder
from archetype.errors import enumeration
from archetype.evaluation import ClassReport, ValueReport
from archetype.generate import MAX_TOKENS, Answer, Prediction, TokenClass
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder


class TextEncoder(TextEmbedder, TextClassifier):
    """Model that embeds whole texts, and fills masks, classifies or answers questions, depending on its head."""

    model: Encoder | Decoder

    @property
    def _purpose(self) -> str:
        head, verbs = self.spec.head, ["embed"]
        if self.spec.fills_masks:
            verbs.insert(0, "fill")
        if head.has_classes:
            verbs.append("answer questions about" if head.marks_spans else "classify")
        return f"{enumeration(verbs, 'or')} texts"

    def fill(self, text: str, top: int = 5) -> list[list[Prediction]]:
        """Predict the token at each [MASK] of a text.

        Args:
            top: number of predictions per mask, most likely first.

        Raises:
            ArchetypeError: the head does not predict masked tokens, or the text has no [MASK] or is too long.
        """
        return generate.fill(self.model, self._tokenizer(), text, top)

    def classify_tokens(self, texts: str | list[str]) -> list[list[TokenClass]]:
        """Classify each token of a text (such as named entities), with the probability of its class.

        Special tokens are left out.

        Raises:
            ArchetypeError: the model has no token classification head, or a text is empty or too long.
        """
        return generate.classify_tokens(self.model, self._tokenizer(), texts, self.labels)

    def answer(self, question: str, text: str, max_tokens: int = MAX_TOKENS) -> Answer:
        """Return the span of a text that most likely answers a question, of at most `max_tokens` tokens.

        Raises:
            ArchetypeError: the head does not mark spans, the tokenizer does not support pairs, or the pair is too long.
        """
        return generate.answer(self.model, self._tokenizer(), question, text, max_tokens)

    def evaluate(self, data: str | Path) -> ClassReport | ValueReport:
        """Evaluate the model on labelled texts, or a token classifier on JSON lines with fields tokens and labels.

        Takes the same arguments and raises the same errors as `TextClassifier.evaluate`.
        """
        head = self.spec.head
        if head.labels_tokens and not head.marks_spans:
            return evaluation.evaluate_tokens(self.model, self._tokenizer(), Path(data), self.labels)
        return super().evaluate(data)
