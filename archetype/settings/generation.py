"""Settings of sampling and beam search."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field

from archetype.errors import SpecError
from archetype.spec.base import Finite, Flag, Positive, Probability, Size, Spec

# between two JSON tokens: a space, or a line break with indentation
BOUNDED_WHITESPACE = r" |\n( {0,16}|\t{0,8})"
Bias = Annotated[float, Field(strict=True, ge=-100, le=100)]
Penalty = Annotated[float, Field(strict=True, ge=-2, le=2)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**20)]
Id = Annotated[int, Field(strict=True, ge=0)]
Ids = Annotated[tuple[Id, ...], Field(min_length=1)]


def _as_tuple(value: Any) -> Any:
    # a single id or string may be written without a list
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


class LogitsRules(Spec):
    """Rules on the tokens that a sequence may contain, for sampling and for every beam of beam search.

    Attributes:
        min_new_tokens: minimum number of generated tokens before an end token is allowed.
        min_length: minimum number of tokens, including the prompt, before an end token is allowed.
        sequence_bias: token sequences with a bias, which is added to the logit of the last token after the others.
        encoder_repetition_penalty: above 1 favours tokens of the prompt or source.
        repetition_penalty: above 1 discourages repeated tokens: divides positive logits, multiplies negative ones
            (Keskar 2019).
        no_repeat_ngram_size: N-grams of this size occur at most once (0: no limit).
        encoder_no_repeat_ngram_size: N-grams of this size from the prompt or source are never generated.
        bad_words_ids: token sequences that are never generated.
        forced_bos_token_id: first token of a target.
        forced_eos_token_id: one of these tokens comes last when the length limit is reached.
        exponential_decay_length_penalty: (start, factor): raise the logits of end tokens by `factor` per token after
            `start`.
        suppress_tokens: tokens that are never generated.
        begin_suppress_tokens: tokens that are never generated first.
        renormalize_logits: renormalize probabilities over the allowed tokens, which matters between beams.
    """

    min_new_tokens: Count = 0
    min_length: Count = 0
    sequence_bias: tuple[tuple[Ids, Finite], ...] = ()
    encoder_repetition_penalty: Positive = 1.0
    repetition_penalty: Positive = 1.0
    no_repeat_ngram_size: Count = 0
    encoder_no_repeat_ngram_size: Count = 0
    bad_words_ids: tuple[Ids, ...] = ()
    forced_bos_token_id: Id | None = None
    forced_eos_token_id: Annotated[tuple[Id, ...], BeforeValidator(_as_tuple)] = ()
    exponential_decay_length_penalty: tuple[Count, Positive] | None = None
    suppress_tokens: tuple[Id, ...] = ()
    begin_suppress_tokens: tuple[Id, ...] = ()
    renormalize_logits: Flag = False

    @property
    def change_every_token(self) -> bool:
        """Whether a rule may change the logits of any token, not only of the last token."""
        fields = LogitsRules.model_fields
        names = fields.keys() - {"forced_eos_token_id", "renormalize_logits"}
        return any(getattr(self, name) != fields[name].default for name in names)

    def check_ids(self, vocab_size: int) -> None:
        """Raise an error for ids outside the vocabulary.

        Raises:
            SpecError: names the field.
        """
        for name, ids in self.named_ids():
            if not all(0 <= id < vocab_size for id in ids):
                cause = f"contains a token id outside the vocabulary of {vocab_size}"
                raise SpecError(name, cause, "is it the model's own tokenizer?")

    def named_ids(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield the token ids in the settings, by field."""
        for name in ("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
            yield name, getattr(self, name)
        yield "forced_bos_token_id", () if self.forced_bos_token_id is None else (self.forced_bos_token_id,)
        yield "sequence_bias", [id for ids, _ in self.sequence_bias for id in ids]
        yield "bad_words_ids", [id for ids in self.bad_words_ids for id in ids]


class Sampling(LogitsRules):
    """Sampling settings of one request. Temperature 0 is greedy.

    Biases and penalties are applied first, then the rules, the temperature, and the filters in the order of the fields.
    `json_schema`, `regex`, `lark` and `choices` allow only tokens with which the whole text can still match.

    Attributes:
        max_new_tokens: maximum number of generated tokens.
        max_length: maximum number of tokens including the prompt, if a request has no `max_new_tokens`.
        logit_bias: {token id: number added to its logit}.
        presence_penalty: subtracted from the logits of tokens generated before, as in the OpenAI API.
        frequency_penalty: subtracted once per earlier occurrence of the token, as in the OpenAI API.
        temperature: sampling temperature; 0 is greedy decoding.
        top_h: keep the most likely tokens up to this share of the entropy (Baghaei Potraghloo 2025).
        top_k: keep the k most likely tokens.
        top_p: keep the fewest tokens whose probabilities sum to p (Holtzman 2019).
        min_p: keep tokens at least min_p times as likely as the most likely one (Nguyen 2024).
        typical_p: keep the tokens of most typical information whose probabilities sum to p (Meister 2022).
        epsilon_cutoff: keep tokens with at least this probability (Hewitt 2022).
        eta_cutoff: keep tokens with at least this probability, or less if the entropy is large (Hewitt 2022).
        seed: seed of the random generator.
        stop: stop string; generation ends before its first occurrence.
        ignore_eos: continue after an end token.
        json_schema: JSON schema that the text must match, as a dict or as JSON.
        json_whitespace: whitespace between JSON tokens: `bounded` (a space, or a line break with indentation) or `free`
            (any).
        regex: regular expression that the whole text must match.
        lark: Lark grammar that the text must match.
        choices: texts to choose from; the output is one of them.
    """

    max_new_tokens: Annotated[int, Field(strict=True, ge=1, le=2**20)] = 256
    max_length: Annotated[int, Field(strict=True, ge=1)] | None = None
    logit_bias: Annotated[dict[int, Bias], Field(max_length=1024)] = {}  # noqa: RUF012  # pydantic copies it
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    temperature: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 1.0
    top_h: Share | None = None
    top_k: Annotated[int, Field(strict=True, ge=1)] | None = None
    top_p: Share = 1.0
    min_p: Probability = 0.0
    typical_p: Share = 1.0
    epsilon_cutoff: Probability = 0.0
    eta_cutoff: Probability = 0.0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_tuple)] = ()
    ignore_eos: Flag = False
    json_schema: Annotated[str | None, BeforeValidator(_as_json)] = None
    json_whitespace: Literal["bounded", "free"] = "bounded"
    regex: str | None = None
    lark: str | None = None
    choices: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def said_limit(self, num_prompt: int) -> int | None:
        """Return the limit on generated tokens that a model's settings set explicitly; None if they set no limit.

        Raises:
            SpecError: `max_length` leaves no token.
        """
        if "max_new_tokens" in self.model_fields_set:
            return self.max_new_tokens
        return None if self.max_length is None else self.length_left(self.max_length, num_prompt)

    @staticmethod
    def length_left(max_length: int, num_prompt: int) -> int:
        """Return the number of tokens that `max_length` leaves after a prompt.

        Raises:
            SpecError: no token is left.
        """
        if max_length <= num_prompt:
            cause = f"{max_length} leaves no room after a prompt of {num_prompt} tokens"
            raise SpecError("max_length", cause, "use max_new_tokens instead")
        return max_length - num_prompt

    def named_ids(self) -> Iterator[tuple[str, Sequence[int]]]:
        yield "logit_bias", list(self.logit_bias)
        yield from super().named_ids()


class SamplingFields(TypedDict, total=False):
    """The fields of `Sampling` as keyword arguments, for editors and type checkers."""

    max_new_tokens: int
    max_length: int | None
    min_new_tokens: int
    min_length: int
    logit_bias: dict[int, float]
    presence_penalty: float
    frequency_penalty: float
    sequence_bias: Sequence[tuple[Sequence[int], float]]
    encoder_repetition_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    encoder_no_repeat_ngram_size: int
    bad_words_ids: Sequence[Sequence[int]]
    forced_bos_token_id: int | None
    forced_eos_token_id: int | Sequence[int]
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: Sequence[int]
    begin_suppress_tokens: Sequence[int]
    renormalize_logits: bool
    temperature: float
    top_h: float | None
    top_k: int | None
    top_p: float
    min_p: float
    typical_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    json_schema: str | dict[str, Any] | None
    json_whitespace: Literal["bounded", "free"]
    regex: str | None
    lark: str | None
    choices: Sequence[str] | None


class Unmasking(Spec):
    """Settings of generation by unmasking, for models that predict masked tokens.

    Attributes:
        tokens_per_step: number of masks that become tokens in each pass; more are faster and less accurate.
        block: length of the blocks that are unmasked one after the other (absent: the model's, else all at once).
        order: which masks of a block become tokens first: `confidence` is the highest probability of the token.
    """

    tokens_per_step: Size = 1
    block: Size | None = None
    order: Literal["confidence", "left_to_right", "random"] = "confidence"


class UnmaskingFields(TypedDict, total=False):
    """The fields of `Unmasking` as keyword arguments, for editors and type checkers."""

    tokens_per_step: int
    block: int | None
    order: Literal["confidence", "left_to_right", "random"]


class Beam(LogitsRules):
    """Settings of beam search.

    The score of a finished target of n tokens is its log-probability divided by ((5 + n) / 6)^length_penalty (Wu 2016,
    equation 14).

    Attributes:
        num_beams: number of beams; 1 is greedy decoding.
        length_penalty: exponent of the length normalization; 0 favours short outputs.
        max_extra_tokens: maximum number of tokens by which a target may exceed its source (Vaswani 2017, section 6.1).
        max_new_tokens: maximum number of target tokens including the end token (absent: limited by the context).
    """

    num_beams: Annotated[int, Field(strict=True, ge=1, le=1000)] = 5
    length_penalty: Annotated[float, Field(strict=True, ge=0, le=32, allow_inf_nan=False)] = 1.0  # no power overflows
    max_extra_tokens: Size = 50
    max_new_tokens: Size | None = None

    def score(self, log_probability: float, length: int) -> float:
        """Return the length-normalized score of a target of `length` tokens, including the end token."""
        return log_probability / float(((5 + length) / 6) ** self.length_penalty)
