"""Settings of generation and of beam search."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BeforeValidator, Field

from archetype.errors import SpecError
from archetype.spec.base import Finite, Flag, Positive, Probability, Size, Spec

# at one place of JSON: a space, or the end of a line and an indentation
BOUNDED_WHITESPACE = r" |\n( {0,16}|\t{0,8})"
Bias = Annotated[float, Field(strict=True, ge=-100, le=100)]
Penalty = Annotated[float, Field(strict=True, ge=-2, le=2)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0, le=2**20)]
Id = Annotated[int, Field(strict=True, ge=0)]
Ids = Annotated[tuple[Id, ...], Field(min_length=1)]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str | int) and not isinstance(value, bool) else value


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


class LogitsRules(Spec):
    """What a text may say, whatever the model finds likely; obeyed in sampling and by every beam of a search.

    Attributes:
        min_new_tokens: tokens before which no token of `eos` ends a text.
        min_length: the same with the tokens of the prompt.
        sequence_bias: numbers that are added to the logits of sequences' last tokens, where the others stand before.
        encoder_repetition_penalty: above 1 encourages tokens of the prompt, or of the source.
        repetition_penalty: above 1 discourages tokens seen: it divides positive logits and multiplies negative ones
            (Keskar 2019).
        no_repeat_ngram_size: so many tokens in a row are written only once (0: any number of times).
        encoder_no_repeat_ngram_size: so many tokens in a row of the prompt, or of the source, are never written.
        bad_words_ids: sequences of tokens that are never written.
        forced_bos_token_id: the first token of a target.
        forced_eos_token_id: one of which is the last token, where a text ends with its length.
        exponential_decay_length_penalty: tokens, and the factor by which the end grows likelier with each further one.
        suppress_tokens: tokens that are never written.
        begin_suppress_tokens: tokens that are not written first.
        renormalize_logits: whether the tokens that are left share all probability, which matters between beams.
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
        """Whether the logits of other tokens than the last may change."""
        fields = LogitsRules.model_fields
        names = fields.keys() - {"forced_eos_token_id", "renormalize_logits"}
        return any(getattr(self, name) != fields[name].default for name in names)

    def check_ids(self, vocab_size: int) -> None:
        """Refuse ids that are no tokens of a model.

        Raises:
            SpecError: names the field.
        """
        for name, ids in self.named_ids():
            if not all(0 <= id < vocab_size for id in ids):
                cause = f"holds a token outside the vocabulary of {vocab_size}"
                raise SpecError(name, cause, "is it the model's own tokenizer?")

    def named_ids(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The tokens that the settings name, by field."""
        for name in ("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
            yield name, getattr(self, name)
        yield "forced_bos_token_id", () if self.forced_bos_token_id is None else (self.forced_bos_token_id,)
        yield "sequence_bias", [id for ids, _ in self.sequence_bias for id in ids]
        yield "bad_words_ids", [id for ids in self.bad_words_ids for id in ids]


class Sampling(LogitsRules):
    """Settings of one generation; temperature 0 is greedy.

    Biases and penalties are applied first, then the rules, then temperature and the filters in the order of the fields.
    With `json_schema`, `regex`, `lark` or `choices` only tokens of texts that match it as a whole are allowed.

    Attributes:
        max_new_tokens: tokens at most.
        max_length: tokens at most with those of the prompt, where a request gives no `max_new_tokens`.
        logit_bias: numbers that are added to the logits of tokens, by their ids.
        presence_penalty: taken from the logits of tokens that the text has, its prompt not counted.
        frequency_penalty: the same, as often as the text has the token; both are those of OpenAI's API.
        temperature: what logits are divided by; 0 is greedy.
        top_h: keep the likeliest tokens up to this share of the entropy (Baghaei Potraghloo 2025).
        top_k: keep the k likeliest tokens.
        top_p: keep the fewest tokens whose probabilities reach p (Holtzman 2019).
        min_p: keep tokens at least min_p times as likely as the likeliest (Nguyen 2024).
        typical_p: keep the tokens of most typical information whose probabilities reach p (Meister 2022).
        epsilon_cutoff: keep tokens of at least this probability (Hewitt 2022).
        eta_cutoff: the same, and less where the entropy is large (Hewitt 2022).
        seed: of the random choices.
        stop: end before this string, which is left out.
        ignore_eos: go on past the token that ends a text.
        json_schema: a JSON schema, as a dict or as JSON.
        json_whitespace: of that JSON: bounded to a space or an indented line between two of its signs, or free, with
            which some models write spaces to the last token.
        regex: write what matches a regular expression as a whole.
        lark: a grammar of Lark.
        choices: write one of these texts, as it is.
    """

    max_new_tokens: Annotated[int, Field(strict=True, ge=1, le=2**20)] = 256
    max_length: Annotated[int, Field(strict=True, ge=1)] | None = None
    logit_bias: Annotated[dict[int, Bias], Field(max_length=1024)] = {}  # noqa: RUF012  # pydantic copies it
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    temperature: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 1.0
    top_h: Share | None = None
    top_k: Annotated[int, Field(strict=True, ge=1)] | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 1.0
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
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    def said_limit(self, num_prompt: int) -> int | None:
        """Tokens that may follow a prompt by a model's own files; None where they say nothing of it.

        Raises:
            SpecError: `max_length` leaves none.
        """
        if "max_new_tokens" in self.model_fields_set:
            return self.max_new_tokens
        return None if self.max_length is None else self.length_left(self.max_length, num_prompt)

    @staticmethod
    def length_left(max_length: int, num_prompt: int) -> int:
        """What a `max_length` leaves after the tokens of a prompt.

        Raises:
            SpecError: nothing.
        """
        if max_length <= num_prompt:
            cause = f"{max_length} leaves no token after the {num_prompt} of the prompt"
            raise SpecError("max_length", cause, "give max_new_tokens instead")
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


class Beam(LogitsRules):
    """Settings of a search, and the rules that every target obeys.

    A finished target of n tokens is judged by its log-probability divided by ((5 + n) / 6)^length_penalty (Wu 2016,
    equation 14).

    Attributes:
        num_beams: continuations of each source that are followed; 1 is greedy.
        length_penalty: 0 favours short targets.
        max_extra_tokens: how many tokens longer than its source a target may be (Vaswani 2017, section 6.1).
        max_new_tokens: tokens of a target at most, its end included (absent: as many as the context holds).
    """

    num_beams: Annotated[int, Field(strict=True, ge=1, le=1000)] = 5
    length_penalty: Annotated[float, Field(strict=True, ge=0, le=32, allow_inf_nan=False)] = 1.0  # no power overflows
    max_extra_tokens: Size = 50
    max_new_tokens: Size | None = None

    def score(self, log_probability: float, length: int) -> float:
        """The score of a target of `length` tokens, its end included."""
        return log_probability / float(((5 + length) / 6) ** self.length_penalty)
