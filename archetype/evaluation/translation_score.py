"""Translation metrics: BLEU and chrF, and the loss on reference targets."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from archetype.data.example_counts import ALL_WHOLE, ExampleCounts
from archetype.data.pairs import end_of_text, without_empty
from archetype.distribution import install_command
from archetype.errors import DataError
from archetype.generate.beam import translate
from archetype.generate.encoder import TOKENS_AT_ONCE
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.settings.generation import Beam
from archetype.table import Table
from archetype.tokenizers import Tokenizer


@dataclass(frozen=True)
class TranslationScore:
    """Translation metrics over all pairs.

    Attributes:
        bleu: BLEU of the translations (Papineni 2002), 0 to 100, by sacrebleu.
        chrf: chrF of the translations (Popović 2015), 0 to 100, by sacrebleu.
        loss: mean cross-entropy per reference token, including end tokens, in nats.
        accuracy: fraction of the reference tokens to which the model gave the highest probability.
        num_tokens: number of tokens in all reference targets.
        signature: sacrebleu's signature of the BLEU computation, to report with the score.
        examples: counts of pairs left out.
    """

    bleu: float
    chrf: float
    loss: float
    accuracy: float
    num_pairs: int
    num_tokens: int
    signature: str
    examples: ExampleCounts = ALL_WHOLE

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"perplexity": self.perplexity}

    def __str__(self) -> str:
        headings = ("pairs", "BLEU", "chrF", "loss per token", "perplexity", "accuracy")
        figures = (f"{self.bleu:.2f}", f"{self.chrf:.2f}", f"{self.loss:.4f}", f"{self.perplexity:.3f}")
        row = [f"{self.num_pairs:,}", *figures, f"{self.accuracy:.1%}"]
        table = Table(headings, [row], text_columns=0)
        return "\n".join([str(table), f"BLEU|{self.signature}", *self.examples.lines("pairs")])


def translation_score(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    sources: list[str],
    targets: list[str],
    places: list[str],
    settings: Beam,
    start: int | None = None,
) -> TranslationScore:
    """Translate sources and compare the results with reference targets.

    Args:
        model: model in evaluation mode.
        sources: source texts; pairs with an empty side are left out.
        targets: reference target of each source.
        places: file and line of each pair, for errors.
        settings: beam search settings.
        start: token with which every target starts (default: the end token).

    Raises:
        DataError: there are no pairs, a text exceeds the model's context, or sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise DataError("sacrebleu", "is not installed", install_command("sacrebleu")) from None
    num_pairs = len(sources)
    places = [place for place, *texts in zip(places, sources, targets, strict=True) if all(map(str.strip, texts))]
    sources, targets = without_empty(sources, targets)
    if not sources:
        raise DataError("data", "contains no pairs", "provide at least one source with its target")
    loss, accuracy, num_tokens = target_loss(model, tokenizer, sources, targets, places, start)
    translations = translate(model, tokenizer, sources, settings, start)
    bleu = BLEU()
    scores = (bleu.corpus_score(translations, [targets]).score, CHRF().corpus_score(translations, [targets]).score)
    signature, counts = str(bleu.get_signature()), ExampleCounts(num_empty=num_pairs - len(sources))
    return TranslationScore(*scores, loss, accuracy, len(sources), num_tokens, signature, counts)


@torch.inference_mode()
def target_loss(
    model: EncoderDecoder,
    tokenizer: Tokenizer,
    sources: list[str],
    targets: list[str],
    places: list[str],
    start: int | None = None,
) -> tuple[float, float, int]:
    """Return mean cross-entropy, accuracy and number of target tokens. Arguments are those of `translation_score`."""
    end, context = end_of_text(tokenizer), model.spec.context_length
    pairs = [
        ([*tokenizer.encode(source), end], [end if start is None else start, *tokenizer.encode_target(target), end])
        for source, target in zip(sources, targets, strict=True)
    ]
    for place, (ids, target_ids) in zip(places, pairs, strict=True):
        if (longest := max(len(ids), len(target_ids) - 1)) > context:
            cause = f"has a source or target of {longest} tokens, but the model's context is {context}"
            raise DataError(place, cause, "split it into sentences")
    # similar lengths together; the order of pairs does not matter for a mean
    pairs.sort(key=lambda pair: max(map(len, pair)))
    total, correct, num_tokens, first = 0.0, 0, 0, 0
    while first < len(pairs):
        last = first + 1
        # as many pairs as fit into TOKENS_AT_ONCE, padded to the longest, which is the last
        while last < len(pairs) and (last + 1 - first) * max(map(len, pairs[last])) <= TOKENS_AT_ONCE:
            last += 1
        (source, source_lengths), (target, lengths) = (
            _padded([pair[side] for pair in pairs[first:last]], model.device) for side in (0, 1)
        )
        lengths -= 1  # the last target token is predicted but not read
        logits = model(target[:, :-1], num_tokens=lengths, source=source, source_num_tokens=source_lengths).logits
        is_token = torch.arange(logits.shape[1], device=model.device) < lengths[:, None]
        logits, expected = logits[is_token].float(), target[:, 1:][is_token]  # (tokens, V), (tokens,)
        total += float(torch.nn.functional.cross_entropy(logits, expected, reduction="none").double().sum())
        correct += int((logits.argmax(-1) == expected).sum())
        num_tokens += len(expected)
        first = last
    return total / num_tokens, correct / num_tokens, num_tokens


def _padded(sequences: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    # tokens, (B, T), and lengths, (B,)
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sequences], batch_first=True)
    return padded.to(device), torch.tensor([len(ids) for ids in sequences], device=device)
