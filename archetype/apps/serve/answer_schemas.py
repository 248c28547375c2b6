"""The answers of the routes, as the OpenAPI document describes them; a test holds real answers against these."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Numbers = list[float | int | None]
Row = dict[str, Any]


class Reply(BaseModel):
    """An answer: these keys and no others."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorBody(Reply):
    message: str
    type: str
    param: str | None
    code: str


class Error(Reply):
    error: ErrorBody


class CachedTokens(Reply):
    cached_tokens: int


class Usage(Reply):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None


class Enveloped(Reply):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class CompletionLogprobs(Reply):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] = []  # pydantic copies it
    prompt_token_ids: list[int] = []


class Completion(Enveloped):
    choices: list[CompletionChoice]
    usage: Usage


class TokenLogprob(Reply):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Row] = []


class ChatLogprobs(Reply):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Reply):
    name: str
    arguments: str


class ToolCall(Reply):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = []


class ChatChoice(Reply):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] = []


class ChatCompletion(Enveloped):
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = []


class OutputText(Reply):
    type: Literal["output_text"]
    text: str
    annotations: list[Row]
    logprobs: list[TokenLogprob]


class OutputMessage(Reply):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText]


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class Response(Reply):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputMessage]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    temperature: float
    top_p: float
    top_logprobs: int
    text: Row
    background: bool
    parallel_tool_calls: bool
    previous_response_id: None
    store: bool
    tool_choice: Literal["none"]
    tools: list[Row]
    truncation: Literal["disabled"]


class RenderedPrompt(Reply):
    model: str
    prompt: str
    token_ids: list[int]
    count: int


class EmbeddingRow(Reply):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Reply):
    object: Literal["list"]
    data: list[EmbeddingRow]
    model: str
    usage: Usage


class ClassRow(Reply):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(Enveloped):
    data: list[ClassRow]
    usage: Usage


class Tokens(Reply):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] = []


class Text(Reply):
    prompt: str


class TokenizerInfo(Reply):
    tokenizer_class: str
    vocab_size: int
    model_max_length: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class ModelEntry(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None


class ModelList(Reply):
    object: Literal["list"]
    data: list[ModelEntry]


class Health(Reply):
    status: Literal["ok", "shutting_down"]


class Filled(Reply):
    model: str
    slots: list[list[Row]]


class Inspected(Reply):
    id: str
    model: str
    kind: str
    tokens: list[Row]
    source_tokens: list[Row]
    views: list[str]
    norms: Row | None
    source_norms: Row | None
    attention: list[Row]
    heads: list[Row]
    expires: int


class Exactness(Reply):
    max_logit_diff: float | None


class Lens(Reply):
    layers: list[str]
    tokens: list[str]
    answers: list[list[list[str]]]
    ids: list[list[list[int]]]
    logp: list[list[Numbers]]
    rank: list[list[int]]
    kl: list[Numbers]
    entropy: list[Numbers]


class Experts(Reply):
    tokens: list[str]
    mixtures: list[Row]


class Recurrent(Reply):
    tokens: list[str]
    series: list[Row]


class Way(Reply):
    stations: list[Row]


class Choice(Reply):
    chosen: int
    left: int
    size: int
    rows: list[Row]


class EngineState(Reply):
    models: list[Row]


class ReportList(Reply):
    folders: list[str]
    reports: list[Row]


class Report(Reply):
    name: str
    report: Any
    pictures: list[str]
    text: str


class RunList(Reply):
    folder: str
    runs: list[Row]


class Run(Reply):
    name: str
    environment: Any
    recipe: str | None
    spec: str | None


class Metrics(Reply):
    name: str
    version: int
    next: int
    training: bool
    x: str
    names: list[str]
    series: dict[str, dict[str, Numbers]]
    samples: list[Row]
    peak_flops: float | None


class PageModels(Reply):
    models: list[Row]


class Presets(Reply):
    presets: list[Row]
    devices: list[str]


class Judged(BaseModel):
    """What is said of a specification; where it is not ok, its problems and little else."""

    ok: bool
    problems: list[Row]
