"""Settings of generation and of beam search; and the ids of special tokens in a model's files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from pydantic import BeforeValidator, Field

from archetype.errors import ArchetypeError, CheckpointError
from archetype.io.files import read_json
from archetype.spec.base import Flag, Positive, Probability, Size, Spec

GENERATION_CONFIG = "generation_config.json"
NEVER = "bad_words_ids"  # in the files of translators, a list of the sequences of tokens that are never written
Bias = Annotated[float, Field(strict=True, ge=-100, le=100)]
Penalty = Annotated[float, Field(strict=True, ge=-2, le=2)]
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


class Sampling(Spec):
    """Settings of one generation; temperature 0 is greedy. The order of application is that of the fields.

    With `json_schema`, `regex` or `lark` only tokens of texts that match it as a whole are allowed.

    Attributes:
        max_new_tokens: tokens at most.
        min_new_tokens: tokens before which no token of `eos` ends a text.
        logit_bias: numbers that are added to the logits of tokens, by their ids.
        presence_penalty: taken from the logits of tokens that the text has, its prompt not counted.
        frequency_penalty: the same, as often as the text has the token; both are those of OpenAI's API.
        repetition_penalty: above 1 discourages tokens seen: it divides positive logits and multiplies negative ones
            (Keskar 2019).
        temperature: what logits are divided by; 0 is greedy.
        top_k: keep the k likeliest tokens.
        top_p: keep the fewest tokens whose probabilities reach p (Holtzman 2019).
        min_p: keep tokens at least min_p times as likely as the likeliest (Nguyen 2024).
        seed: of the random choices.
        stop: end before this string, which is left out.
        ignore_eos: go on past the token that ends a text.
        json_schema: a JSON schema, as a dict or as JSON.
        regex: write what matches a regular expression as a whole.
        lark: a grammar of Lark.
    """

    max_new_tokens: Annotated[int, Field(strict=True, ge=1, le=2**20)] = 256
    min_new_tokens: Annotated[int, Field(strict=True, ge=0, le=2**20)] = 0
    logit_bias: Annotated[dict[int, Bias], Field(max_length=1024)] = {}  # noqa: RUF012  # pydantic copies it
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Positive = 1.0
    temperature: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(strict=True, ge=1)] | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 1.0
    min_p: Probability = 0.0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_tuple)] = ()
    ignore_eos: Flag = False
    json_schema: Annotated[str | None, BeforeValidator(_as_json)] = None
    regex: str | None = None
    lark: str | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0


class SamplingFields(TypedDict, total=False):
    """The fields of `Sampling` as keyword arguments, for editors and type checkers."""

    max_new_tokens: int
    min_new_tokens: int
    logit_bias: dict[int, float]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    json_schema: str | dict[str, Any] | None
    regex: str | None
    lark: str | None


def read_generation_config(folder: Path) -> tuple[Sampling, dict[str, Any]]:
    """The defaults that a model folder's generation_config.json sets, and its other keys (ids of special tokens).

    Without the file, or without `do_sample`, decoding is greedy, as in transformers.
    """
    file = folder / GENERATION_CONFIG
    if not file.is_file():
        return Sampling(temperature=0.0), {}
    data = read_json(file, error=CheckpointError)
    names = ("max_new_tokens", "repetition_penalty", "temperature", "top_k", "top_p", "min_p")
    values = {name: data[name] for name in names if data.get(name) is not None}
    if values.get("top_k") == 0:
        del values["top_k"]  # the library's way to say that it is off
    if not isinstance(data.get("do_sample") or False, bool):
        raise CheckpointError(f"{file}: do_sample", f"{data['do_sample']!r} is neither true nor false", "fix the file")
    try:
        sampling = Sampling.parse(values)
        if not data.get("do_sample"):
            sampling = sampling.replace(temperature=0.0)
        return sampling, {name: value for name, value in data.items() if name not in names}
    except ArchetypeError as error:
        raise error.at(str(file)) from None


def generation_config(sampling: Sampling) -> dict[str, Any]:
    """These settings as the contents of generation_config.json."""
    values: dict[str, Any] = {"do_sample": not sampling.greedy}
    for name in ("repetition_penalty", "temperature", "top_k", "top_p", "min_p"):
        value = getattr(sampling, name)
        if value != Sampling.model_fields[name].default and not (name == "temperature" and sampling.greedy):
            values[name] = value
    return values


def special_ids(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """The ids of special tokens in one of a model's files: a text may end with one of several."""
    special = {name: config[name] for name in SPECIAL if name in config}
    for name, value in special.items():
        values = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not all(id is None or (isinstance(id, int) and not isinstance(id, bool)) for id in values):
            raise CheckpointError(f"{place}: {name}", f"{value!r} is not a token id", "fix the file")
    return special | _never(config, place)


def _never(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """Sequences of tokens that are never written, where the file names some."""
    if (value := config.get(NEVER)) is None:
        return {}
    listed = isinstance(value, list) and all(isinstance(one, list) for one in value)
    if not listed or not all(type(id) is int and id >= 0 for one in value for id in one):
        raise CheckpointError(f"{place}: {NEVER}", f"{value!r:.80} is not a list of lists of token ids", "fix the file")
    return {NEVER: value}


def never_written(special: Mapping[str, Any]) -> tuple[int, ...]:
    """The single tokens that are never written."""
    return tuple(ids[0] for ids in special.get(NEVER) or () if len(ids) == 1)


class Beam(Spec):
    """Settings of a search.

    A finished target of n tokens is judged by its log-probability divided by ((5 + n) / 6)^length_penalty (Wu 2016,
    equation 14).

    Attributes:
        num_beams: continuations of each source that are followed; 1 is greedy.
        length_penalty: 0 favours short targets.
        max_extra_tokens: how many tokens longer than its source a target may be (Vaswani 2017, section 6.1).
        suppress_tokens: ids that no target has, such as Marian's padding.
    """

    num_beams: Annotated[int, Field(strict=True, ge=1, le=1000)] = 5
    length_penalty: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 1.0
    max_extra_tokens: Size = 50
    suppress_tokens: tuple[Annotated[int, Field(strict=True, ge=0)], ...] = ()

    def score(self, log_probability: float, length: int) -> float:
        """The score of a target of `length` tokens, its end included."""
        return log_probability / float(((5 + length) / 6) ** self.length_penalty)
