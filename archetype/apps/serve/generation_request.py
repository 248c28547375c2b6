"""Fields of text generation requests: sampling, stop strings, streaming and structured output."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from archetype.apps.serve.body import IGNORED, Body, Fields, Ignored, Unsupported
from archetype.apps.serve.errors import ApiError, invalid_value
from archetype.apps.serve.limits import MAX_CHOICES

Number = Annotated[float, Field(allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**20)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


def _check_stop(stop: str | list[str] | None) -> str | list[str] | None:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > 16:
        raise ValueError(f"has {len(strings)} strings; use at most 16")
    if not all(strings):
        raise ValueError("contains an empty string; remove it")
    return stop


class StreamOptions(Fields):
    """How a stream ends."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None
    continuous_usage_stats: Annotated[Any, Unsupported(False, instead="only the last chunk has the usage")] = None


class JsonSchema(Fields):
    """Object `json_schema` of `response_format`."""

    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None  # every schema is obeyed
    name: Annotated[str | None, IGNORED] = None
    description: Annotated[str | None, IGNORED] = None


class ResponseFormat(Fields):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def without_effect(self) -> list[str]:
        return super().without_effect() if self.type == "json_schema" else sorted(self.model_fields_set - {"type"})


class StructuredOutputs(Fields):
    """Constraint in the format of vLLM's clients; exactly one field is set."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


GUIDED = ("json", "regex", "choice", "grammar")


class GenerationRequest(Body):
    """Fields shared by completions and chat completions."""

    model: str | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    seed: Seed | None = None
    stop: Annotated[str | list[str] | None, AfterValidator(_check_stop)] = None
    stop_token_ids: Annotated[list[int], Field(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_whitespace: Literal["bounded", "free"] | None = None
    # accepted without effect
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    verbosity: Ignored = None
    reasoning: Ignored = None
    reasoning_effort: Ignored = None
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    # refused, unless the value changes nothing
    tools: Annotated[Any, Unsupported([])] = None
    tool_choice: Annotated[Any, Unsupported("none", "auto")] = None
    functions: Annotated[Any, Unsupported([])] = None
    function_call: Annotated[Any, Unsupported("none", "auto")] = None
    suffix: Annotated[Any, Unsupported("")] = None
    best_of: Annotated[Any, Unsupported(1)] = None
    audio: Annotated[Any, Unsupported()] = None
    modalities: Annotated[Any, Unsupported(["text"])] = None
    web_search_options: Annotated[Any, Unsupported()] = None
    use_beam_search: Annotated[Any, Unsupported(False)] = None
    length_penalty: Annotated[Any, Unsupported(1)] = None
    truncate_prompt_tokens: Annotated[Any, Unsupported()] = None
    prompt_logprobs: Annotated[Any, Unsupported()] = None
    bad_words: Annotated[Any, Unsupported([])] = None
    include_stop_str_in_output: Annotated[Any, Unsupported(False)] = None
    skip_special_tokens: Annotated[Any, Unsupported(True)] = None
    spaces_between_special_tokens: Annotated[Any, Unsupported(True)] = None

    def without_effect(self) -> list[str]:
        names = super().without_effect()
        if self.response_format is not None and self.response_format.type == "text":
            names.append("response_format")  # text without a constraint is what is generated anyway
        if self.stream_options is not None and not self.stream:
            # named once as a whole, rather than by each of its fields
            names = [name for name in names if not name.startswith("stream_options.")] + ["stream_options"]
        if self.json_whitespace is not None and not any(kind == "json_schema" for _, kind, _ in self._rules()):
            names.append("json_whitespace")
        return names

    def most_tokens(self) -> int | None:
        """Return the largest number of new tokens; None if the body sets no limit.

        Raises:
            ApiError: max_tokens and max_completion_tokens differ.
        """
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            cause = f"{self.max_tokens} and max_completion_tokens {self.max_completion_tokens} differ"
            raise invalid_value("max_tokens", f"{cause}; use exactly one of them")
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Return whether the stream ends with a usage event."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self) -> dict[str, Any]:
        """Return the fields of `Sampling` set by this body. The model's defaults apply to the others."""
        names = (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "ignore_eos",
        )
        settings = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.top_k is not None:
            settings["top_k"] = self.top_k if self.top_k > 0 else None  # 0 and -1 turn it off, as in vLLM
        if self.min_tokens is not None:
            settings["min_new_tokens"] = self.min_tokens
        if self.stop is not None:
            settings["stop"] = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if self.json_whitespace is not None:
            settings["json_whitespace"] = self.json_whitespace
        return settings | self.grammar()

    def grammar(self) -> dict[str, Any]:
        """Return the constraint on the generated text as a field of `Sampling`.

        Raises:
            ApiError: the body sets more than one constraint.
        """
        rules = list(self._rules())
        if len(rules) > 1:
            raise invalid_value(rules[1][0], f"cannot be combined with {rules[0][0]}; use exactly one of them")
        return {kind: value for _, kind, value in rules}

    def _rules(self) -> Iterator[tuple[str, str, Any]]:
        # as (field of the body, field of `Sampling`, value)
        if self.response_format is not None and self.response_format.type == "json_object":
            yield "response_format", "json_schema", '{"type": "object"}'
        if self.response_format is not None and self.response_format.type == "json_schema":
            if self.response_format.json_schema is None:
                raise invalid_value("response_format.json_schema", "is missing; add a schema")
            yield "response_format", "json_schema", json.dumps(self.response_format.json_schema.schema_)
        guided = {f"guided_{name}": getattr(self, f"guided_{name}") for name in GUIDED}
        if (structured := self.structured_outputs) is not None:
            values = structured.model_dump(by_alias=True)
            guided |= {f"structured_outputs.{name}": values[name] for name in GUIDED}
            if structured.json_object:
                yield "structured_outputs", "json_schema", '{"type": "object"}'
        for name, value in guided.items():
            if value is None:
                continue
            # guided_json (vLLM's older names) and structured_outputs.json are both of kind json
            field, kind = name.partition(".")[0], name.replace("_", ".").rpartition(".")[2]
            match kind:
                case "json":
                    yield field, "json_schema", value if isinstance(value, str) else json.dumps(value)
                case "regex":
                    yield field, "regex", str(value)
                case "grammar":
                    yield field, "lark", str(value)
                case _:
                    if not value:
                        raise ApiError("invalid_value", f"{name}: is empty; add at least one choice", field)
                    yield field, "choices", tuple(value)
