"""Language model with its tokenizer, as returned by `archetype.load`."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from archetype import evaluation, generate
from archetype.api.loaded_model import LoadedModel
from archetype.convert.sentence_transformers.files import SentenceSettings, read_settings
from archetype.convert.sentence_transformers.head import read_head
from archetype.convert.sentence_transformers.weights import open_head
from archetype.data.example_counts import ExampleCounts
from archetype.data.pairs import read_pairs
from archetype.data.records import read_records
from archetype.data.retrieval import read_retrieval
from archetype.data.text_pairs import SCORED_PAIR, wrong_score
from archetype.errors import DataError, SpecError
from archetype.evaluation import (
    RECALL_AT,
    ClassReport,
    RetrievalScore,
    Score,
    SimilarityScore,
    TaskScores,
    TranslationScore,
    ValueReport,
)
from archetype.generate import MAX_TOKENS, Answer, Engine, Pooling, Prediction, TokenClass, Translation
from archetype.inspection import Inspection, Tracer
from archetype.inspection.inputs import Inputs, Text, inputs_of
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.vision.module import VisionEncoder
from archetype.settings.generation import SamplingFields
from archetype.tokenizers.chat_template import Message

log = logging.getLogger(__name__)
MAX_ROWS = 32  # prompts decoded in one batch
PREFIX_BYTES = 2**28  # prefix cache for prompts with a common beginning


class LanguageModel(LoadedModel):
    """A specification, its model and its tokenizer, ready to generate; its attributes are those of `LoadedModel`."""

    @overload
    def generate(
        self,
        prompt: str,
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str | list[str],
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> str | list[str]:
        """Continue a prompt, or several prompts as one batch; with an encoder-decoder, write the target of each.

        Args:
            prompt: text, or a list of texts; for an encoder-decoder the source.
            draft: a smaller model with the same vocabulary, for speculative decoding (the output does not change); or
                "self", for the further tokens that the model itself predicts.
            lookup: draft by prompt lookup instead, for outputs that repeat parts of the prompt.
            sampling: fields of `Sampling`, such as max_new_tokens=200 or temperature=0.8.

        Returns:
            The continuation without the prompt, or a list of them.

        Raises:
            ArchetypeError: the model does not generate text, a setting is out of range, or a prompt is too long.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        texts = [""] * len(prompts)
        for index, piece in self.stream_all(prompts, draft=draft, lookup=lookup, **sampling):
            texts[index] += piece
        return texts[0] if isinstance(prompt, str) else texts

    def stream(
        self,
        prompt: str,
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> Iterator[str]:
        """Continue a prompt piece by piece; no piece ends inside a character.

        Args:
            prompt: a text.
            draft: as for `generate`.
            lookup: likewise.
            sampling: fields of `Sampling`.
        """
        return self.engine(1, draft, lookup).submit(prompt, **sampling).pieces()

    def stream_all(
        self,
        prompts: list[str],
        *,
        draft: "Draft | None" = None,
        lookup: bool = False,
        **sampling: Unpack[SamplingFields],
    ) -> Iterator[tuple[int, str]]:
        """Continue several prompts at once.

        Args:
            prompts: the texts.
            draft: as for `generate`.
            lookup: likewise.
            sampling: fields of `Sampling`.

        Returns:
            Pairs of the prompt's index and the next piece of its continuation.
        """
        engine = self.engine(len(prompts), draft, lookup)
        several = len(prompts) > 1
        requests = [engine.submit(text, id=n if several else None, **sampling) for n, text in enumerate(prompts, 1)]
        index = {request: n for n, request in enumerate(requests)}
        return ((index[event.request], event.text) for event in engine.events() if event.text)

    def chat(self, messages: list[Message], **sampling: Unpack[SamplingFields]) -> str:
        """Answer a conversation.

        Args:
            messages: each with its role (system, user or assistant) and its content.
            sampling: fields of `Sampling`.

        Raises:
            DataError: the model has no chat template, or the template refuses these messages.
        """
        return "".join(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: list[Message], **sampling: Unpack[SamplingFields]) -> Iterator[str]:
        """Answer a conversation piece by piece; arguments and errors as for `chat`."""
        return self.engine(1).submit(self.encode_chat(messages), continues=False, **sampling).pieces()

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """Return the token ids of a conversation up to the model's answer; errors as for `chat`."""
        self._causal_model()
        tokenizer = self._tokenizer()
        if self.template is None:
            cause = "the folder has none: this model continues texts and was not made to answer"
            raise DataError("chat template", cause, "generate without chat")
        return tokenizer.encode_with_special_tokens(self.template.render(messages))

    @overload
    def translate(self, text: str, **beam: Any) -> str: ...

    @overload
    def translate(self, text: list[str], **beam: Any) -> list[str]: ...

    def translate(self, text: str | list[str], **beam: Any) -> str | list[str]:
        """Translate a source text, or several as one batch, with an encoder-decoder.

        Args:
            text: a source, or a list of sources.
            beam: fields of `Beam`, such as num_beams=5 or length_penalty=1.0.

        Raises:
            ArchetypeError: the model is not an encoder-decoder, a setting is out of range, or a source is too long.
        """
        sources = [text] if isinstance(text, str) else text
        *_, targets = self.translations(sources, **beam)
        texts = [target.text for target in targets or ()]
        return texts[0] if isinstance(text, str) else texts

    def translations(self, sources: list[str], **beam: Any) -> Iterator[list[Translation] | None]:
        """Translate step by step; the last item has the targets. Arguments and errors as of `translate`."""
        model = self._pair()
        return generate.translations(model, self._tokenizer(), sources, self.beam(**beam), self.target_start)

    def fill(self, text: str, top: int = 5) -> list[list[Prediction]]:
        """Predict the token at each [MASK] of a text with an encoder.

        Args:
            top: predictions per mask, most likely first.
        """
        return generate.fill(self._model(Encoder), self._tokenizer(), text, top)

    def score(self, text: str, stride: int | None = None, length: int | None = None) -> Score:
        """Compute loss per token, perplexity and bits per byte of a text of any length.

        Args:
            stride: tokens between the starts of two windows (default: half of `length`).
            length: tokens per window (default: the model's context, or less for a large vocabulary).
        """
        return evaluation.score(self._causal_model(), self._tokenizer(), text, stride, length)

    def evaluate(
        self, data: str | Path | tuple[str | Path, str | Path], **beam: Any
    ) -> ClassReport | ValueReport | TranslationScore:
        """Evaluate classes, values or translations against labelled examples.

        Args:
            data: JSON lines or CSV of text and label, for classes of tokens JSON lines of tokens and labels; for images
                a .npz file, or a folder with a subfolder for each class; for an encoder-decoder the files of source and
                target lines, or JSON lines of both.
            beam: of translations: fields of `Beam`, such as num_beams=1.

        Raises:
            ArchetypeError: the model only continues texts (see `score`), or the data are wrong.
        """
        if isinstance(self.model, EncoderDecoder) and self.spec.writes_target:
            tokenizer, settings = self._tokenizer(), self.beam(**beam)
            return evaluation.translation_score(self.model, tokenizer, *read_pairs(data), settings, self.target_start)
        if isinstance(data, tuple) or beam:
            cause = "pairs and beam search need an encoder-decoder"
            raise SpecError("data", cause, "give one file, and no beam settings")
        if isinstance(self.model, VisionEncoder):
            return evaluation.evaluate_images(self.model, Path(data), self.labels, self._processor_of(Path(data)))
        if isinstance(self.model, Encoder | Decoder | EncoderDecoder) and self.model.spec.head.classifies:
            return evaluation.evaluate_texts(self.model, self._tokenizer(), Path(data), self.labels, self.target_start)
        if (
            isinstance(self.model, Encoder | Decoder)
            and self.spec.head.labels_tokens
            and not self.spec.head.marks_spans
        ):
            return evaluation.evaluate_tokens(self.model, self._tokenizer(), Path(data), self.labels)
        raise SpecError("data", "the model has no classes, values or targets", "give a text that it is to predict")

    def evaluate_retrieval(self, path: str | Path, recall_at: Sequence[int] = RECALL_AT) -> RetrievalScore:
        """Evaluate retrieval: rank texts by the cosine similarity of their embeddings to each question's.

        Questions and texts are embedded with the model's prompts for each.

        Args:
            path: JSON lines, CSV or TSV of anchor and positive, and perhaps negative, whose positives and negatives are
                all searched; or a folder with corpus.jsonl, queries.jsonl and qrels, as BEIR has it.
            recall_at: values of k for recall@k.

        Raises:
            ArchetypeError: the model cannot embed texts, or the data are wrong.
        """
        data = read_retrieval(Path(path))
        settings = self.sentence_settings or SentenceSettings()
        queries, num_cut = self._embed(data.queries, normalized=True, prompt=settings.query_prompt)
        documents, num_cut_too = self._embed(data.documents, normalized=True, prompt=settings.document_prompt)
        score = evaluation.retrieval_score(queries, documents, data.relevant, recall_at)
        return replace(score, examples=num_cut + num_cut_too)

    def evaluate_similarity(self, file: str | Path) -> SimilarityScore:
        """Compare cosine similarities of text pairs with human scores.

        Args:
            file: JSON lines, CSV or TSV of text1, text2 and score.

        Raises:
            ArchetypeError: the model embeds no texts, or the data are wrong.
        """
        records = read_records(Path(file), SCORED_PAIR, fault=wrong_score)
        (a, num_cut), (b, num_cut_too) = (
            self._embed([record[field] for record in records]) for field in ("text1", "text2")
        )
        scores = [float(record["score"]) for record in records]
        score = evaluation.similarity_score(evaluation.cosines_of_pairs(a, b), scores)
        return replace(score, examples=num_cut + num_cut_too)

    def evaluate_tasks(self, tasks: list[str], num_fewshot: int | None = None, limit: int | None = None) -> TaskScores:
        """Evaluate on tasks of EleutherAI's lm-eval harness.

        Args:
            tasks: task names, YAML files, or folders of YAML files.
            num_fewshot: examples before each question (default: the task's).
            limit: questions per task (default: all).

        Raises:
            ArchetypeError: the model does not generate text, lm-eval is not installed, or a task does not exist.
        """
        self._causal_model()
        self._tokenizer()
        return evaluation.evaluate_tasks(self, tasks, num_fewshot, limit)

    def make_deterministic(self) -> "LanguageModel":
        """Make logits independent of the batch, bit for bit, as `load(..., deterministic=True)` does. Return self.

        Raises:
            SpecError: the model does not generate text, or its kernels depend on the batch.
        """
        model = self.model if isinstance(self.model, EncoderDecoder) else self._causal_model()
        generate.make_deterministic(model)
        return self

    def embed(
        self,
        texts: str | Sequence[str | list[int]],
        pooling: Pooling | None = None,
        normalized: bool | None = None,
        prompt: str | None = None,
    ) -> Tensor:
        """Embed texts as vectors, with an encoder or a decoder.

        Args:
            texts: one, or several: a row of the result each; or the token ids of whole texts.
            pooling: "mean" over a text's tokens (default for an encoder), their "max", the "first" token through the
                pooler, or the "last" token, which alone has seen the whole text in a decoder (default there). A head of
                kind sentence_embedding is the default where the model has one, with the prompt and the longest text
                that the files of sentence-transformers say: the vectors are the library's.
            normalized: scale vectors to length 1 (default: as the head says, else true).
            prompt: name of the prompt before each text (default: the model's default one).

        Returns:
            Vectors, (B, D).
        """
        vectors, counts = self._embed(texts, pooling, normalized, prompt)
        _warn_of(counts)
        return vectors

    def _embed(
        self,
        texts: str | Sequence[str | list[int]],
        pooling: Pooling | None = None,
        normalized: bool | None = None,
        prompt: str | None = None,
    ) -> tuple[Tensor, ExampleCounts]:
        model = self._text_model()
        rows, counts = self._embedding_tokens(texts, pooling, prompt)
        head = None if pooling else self._sentence_head(model)
        return generate.embed(model, rows, pooling, normalized, head), counts

    def embedding_tokens(
        self, texts: str | Sequence[str | list[int]], pooling: Pooling | None = None, prompt: str | None = None
    ) -> list[list[int]]:
        """Return the token ids that `embed` reads: prompt and text, truncated as in sentence-transformers.

        Arguments as for `embed`; texts given as token ids stay unchanged.
        """
        rows, counts = self._embedding_tokens(texts, pooling, prompt)
        _warn_of(counts)
        return rows

    def _embedding_tokens(
        self, texts: str | Sequence[str | list[int]], pooling: Pooling | None, prompt: str | None
    ) -> tuple[list[list[int]], ExampleCounts]:
        if pooling is not None and prompt is not None:
            raise SpecError("prompt", "belongs to the model's own pooling", "leave out pooling, or the prompt")
        settings = None if pooling is not None else self.sentence_settings
        if settings is None and prompt is not None:
            raise SpecError("prompt", "the model has no head for vectors of texts, and no prompts", "leave it out")
        return generate.embedding_tokens(self._text_model(), self._tokenizer(), texts, settings, prompt)

    @property
    def sentence_settings(self) -> SentenceSettings | None:
        """Prompts and truncation of texts for embedding; None for a model without an embedding head."""
        has_head = self.spec.head.embeds or read_head(self.sentence_files) is not None
        return read_settings(self.sentence_files) if has_head else None

    def _sentence_head(self, model: Encoder | Decoder) -> Any:
        """Return the embedding head: the model's, or that of its folder if the model's head is a classifier."""
        if model.sentence_head is None and (head := read_head(self.sentence_files)) is not None:
            return open_head(model, head, self.sentence_files)
        return model.sentence_head

    def _text_model(self) -> Encoder | Decoder:
        return self.model if isinstance(self.model, Decoder) else self._model(Encoder)

    def classify(self, inputs: Tensor | str | list[str]) -> Tensor:
        """Return class probabilities of images or texts, or the value that a regression head predicts.

        Args:
            inputs: images, (B, channels, height, width), from `images`; a text, or a list of texts.

        Returns:
            Probabilities, (B, classes), or values, (B, 1).
        """
        if isinstance(inputs, Tensor):
            return generate.classify_pictures(self._model(VisionEncoder), inputs)
        model = self.model if isinstance(self.model, Decoder | EncoderDecoder) else self._model(Encoder)
        return generate.classify_texts(model, self._tokenizer(), inputs, self.target_start)[0]

    def classify_tokens(self, texts: str | list[str]) -> list[list[TokenClass]]:
        """Classify each token of a text (such as named entities), with the probability of its class.

        Returns:
            The tokens of each text, without special tokens.

        Raises:
            ArchetypeError: the model has no token classification head, or a text is empty or too long.
        """
        model = self._text_model()
        return generate.classify_tokens(model, self._tokenizer(), texts, self.labels)

    def answer(self, question: str, text: str, max_tokens: int = MAX_TOKENS) -> Answer:
        """Return the most likely span of a text that answers a question.

        Args:
            text: the text that contains the answer.
            max_tokens: maximum length of the answer.

        Raises:
            ArchetypeError: the head marks no spans, the tokenizer reads no pairs, or both texts are too long together.
        """
        model = self._text_model()
        return generate.answer(model, self._tokenizer(), question, text, max_tokens)

    def inspect(self, text: Text, target: Text | None = None) -> Inspection:
        """Look inside the model while it reads a text.

        Args:
            text: a text or its token ids; an image (channels, height, width) for a vision encoder.
            target: of an encoder-decoder (default: what it writes itself).

        Returns:
            Views: attention, logit lens, residual stream, experts, recurrent states, attributions.

        Raises:
            DataError: the text is empty, or longer than the model's context.
        """
        return Inspection(self.trace(text, target).run(), self.tokenizer, self.labels)

    def trace(self, text: Text, target: Text | None = None) -> Tracer:
        """A pass over a text whose activations are recorded, and may be set, by name; nothing is computed before `run`.

            trace = lm.trace("The capital of France is").ablate("blocks.3.mixer", heads=1).run()
            trace.logits, trace["blocks.5.out"]

        Args:
            text: as for `inspect`.
            target: likewise.
        """
        return Tracer(self.model, self.inputs(text, target), self)

    def inputs(self, text: Text, target: Text | None = None) -> Inputs:
        """The inputs of the model's forward pass for a text; arguments as for `inspect`."""
        start = self.special.get("decoder_start_token_id")
        return inputs_of(self.model, self.tokenizer, text, target, start)

    def engine(self, num_prompts: int = 1, draft: "Draft | None" = None, lookup: bool = False) -> Engine:
        """An engine for some prompts and no more.

        Args:
            num_prompts: that are to be continued; the beginnings of one alone are not remembered.
            draft: as for `generate`.
            lookup: likewise.

        Raises:
            SpecError: the model does not continue texts, or cannot be used with guesses.
        """
        if isinstance(self.model, EncoderDecoder):
            self._pair()
        else:
            self._causal_model()
        prefix_bytes = PREFIX_BYTES if num_prompts > 1 else 0
        return Engine(self, min(max(num_prompts, 1), MAX_ROWS), prefix_bytes, draft=draft, lookup=lookup)


def _warn_of(counts: ExampleCounts) -> None:
    for line in counts.lines():
        log.warning("%s", line)


Draft = LanguageModel | Literal["self"]  # what guesses: a smaller model, or the model itself
