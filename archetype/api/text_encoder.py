"""Models that read whole texts: encoders, and decoders without a language model head."""

from pathlib import Path
from typing import Unpack

from archetype import evaluation, generate
from archetype.api.text_classifier import TextClassifier
from archetype.api.text_embedder import TextEmbedder
from archetype.errors import enumeration
from archetype.evaluation import ClassReport, LikelihoodBound, ValueReport
from archetype.generate import MAX_TOKENS, Answer, Prediction, TokenClass
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.settings.generation import Sampling, SamplingFields, Unmasking, UnmaskingFields


class TextEncoder(TextEmbedder, TextClassifier):
    """Model that embeds whole texts, and depending on its head fills masks, generates by unmasking, classifies or
    answers questions.
    """

    model: Encoder | Decoder

    @property
    def _purpose(self) -> str:
        head, verbs = self.spec.head, ["embed"]
        if self.spec.fills_masks:
            verbs[:0] = ["fill", "unmask"]
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

    def unmask(
        self,
        prompt: str | list[int] = "",
        unmasking: Unmasking | UnmaskingFields | None = None,
        **sampling: Unpack[SamplingFields],
    ) -> str:
        """Generate a text by unmasking (LLaDA; BD3-LM), and return it without the prompt.

        Args:
            prompt: text, or its token ids.
            unmasking: fields of `Unmasking`: tokens per pass, blocks, and which masks become tokens first.
            sampling: fields of `Sampling` (default: greedy, 256 tokens).

        Raises:
            ArchetypeError: the head does not predict masked tokens, a setting is invalid, or the text would be longer
                than the model's context.
        """
        tokenizer = self._tokenizer()
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        settings = Sampling.parse({"temperature": self.sampling.temperature} | sampling)
        order = unmasking if isinstance(unmasking, Unmasking) else Unmasking.parse(unmasking or {})
        return tokenizer.decode(generate.unmask(self.model, tokenizer, ids, settings, order, self.ends))

    def likelihood_bound(self, text: str, length: int | None = None, draws: int = 32, seed: int = 0) -> LikelihoodBound:
        """Estimate an upper bound of the negative log-likelihood of a text, for models trained by masked diffusion.

        Args:
            length: tokens per window (default: the model's context, or less for a large vocabulary).
            draws: number of random masks of each window.
            seed: seed of the masks.

        Raises:
            ArchetypeError: the head does not predict masked tokens, the text is empty, or a size is out of range.
        """
        return evaluation.likelihood_bound(self.model, self._tokenizer(), text, length, draws, seed)

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
