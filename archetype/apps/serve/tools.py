"""Tools of a conversation: their declaration in requests, and the tool calls of responses."""

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, WrapValidator
from typing_extensions import TypedDict

from archetype.apps.serve.body import Fields
from archetype.apps.serve.errors import ApiError, invalid_value
from archetype.apps.serve.served_model import ServedModel
from archetype.errors import ArchetypeError, DataError, SpecError, nearest
from archetype.generate.tool_grammar import tool_grammar
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.tool_calls import CallPiece, Piece, ToolCallParser
from archetype.tokenizers.tool_form import ToolForm
from archetype.tokenizers.tool_rendering import tool_form

ID_SIGNS, ID_LENGTH = string.ascii_letters + string.digits, 9  # as Mistral's templates require; others accept any id


class Parameters(BaseModel):
    """JSON schema of a function's arguments."""

    model_config = ConfigDict(extra="allow")

    type: Literal["object"] = "object"
    properties: dict[str, dict[str, Any] | bool] = {}  # pydantic copies it
    required: list[str] = []
    defs: Annotated[dict[str, Any], Field(alias="$defs")] = {}
    definitions: dict[str, Any] = {}


class Function(Fields):
    """Function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Fields):
    """Tool that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(Fields):
    """Name of the function to call."""

    name: str


class NamedTool(Fields):
    """Tool that the model must call."""

    type: Literal["function"]
    function: FunctionName


def _as_sent(value: Any, check: Callable[[Any], Any]) -> Any:
    # checked, but kept as the client wrote it, because templates print it as it is
    check(value)
    return value


SentTool = Annotated[Tool, WrapValidator(_as_sent)]  # a plain dict
Choice = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True)
class ToolUse:
    """How the model may call tools in a response.

    Attributes:
        form: syntax of calls in the model's template.
        functions: function name -> schema of its arguments.
        has_one: whether at most one call is allowed.
        is_forced: whether a call is required.
        special: special tokens of the syntax, by name.
    """

    form: ToolForm
    functions: Mapping[str, Mapping[str, Any]]
    has_one: bool
    is_forced: bool
    special: Mapping[str, int]

    def settings(self) -> dict[str, Any]:
        """Return engine settings: the special tokens to keep in the text, and the grammar of a required call.

        Raises:
            ApiError: no grammar can express the call.
        """
        settings: dict[str, Any] = {"special_in_text": frozenset(self.special.values())}
        if self.is_forced:
            try:
                settings["lark"] = tool_grammar(self.form, self.functions, self.special, self.has_one)
            except SpecError as error:
                raise ApiError("invalid_value", str(error), "tool_choice") from None
        return settings


def tool_use(model: ServedModel, tools: list[Any] | None, choice: Any, parallel: bool | None) -> ToolUse | None:
    """Return how responses may call the request's tools; None if calls are not allowed. Runs in a text thread.

    Args:
        choice: the request's `tool_choice`.
        parallel: the request's `parallel_tool_calls`.

    Raises:
        ApiError: the model's template does not support tools, or the required function is not among the tools.
    """
    name = choice.function.name if isinstance(choice, NamedTool) else None
    if not tools or choice == "none":
        if name is not None or choice == "required":
            raise invalid_value("tool_choice", "requires tools; send tools, or remove tool_choice")
        return None
    functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    if len(functions) < len(tools):
        raise invalid_value("tools", "two functions have the same name; rename one of them")
    if name is not None and name not in functions:
        raise invalid_value("tool_choice", f"{name!r:.80} is not one of the tools; {nearest(name, functions)}")
    assert model.lm.template is not None
    try:
        form = tool_form(model.lm.template)
    except DataError as error:
        raise ApiError("unsupported_parameter", str(error), "tools") from None
    tokenizer = model.tokenizer
    # a call may also end at one of the model's end tokens
    form = form.until([model.special.get(id) or tokenizer.token(id) for id in model.lm.ends])
    special = {name: id for name, id in tokenizer.special_tokens.items() if any(name in text for text in form.literals)}
    named = functions if name is None else {name: functions[name]}
    has_one = parallel is False or name is not None or form.next_name is None
    return ToolUse(form, named, has_one, name is not None or choice == "required", special)


def takes_text(template: ChatTemplate) -> bool:
    """Return whether a template reads call arguments as JSON text. Most templates read an object."""
    try:
        return tool_form(template).takes_text
    except DataError:
        return False


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCall]]


@dataclass
class Answer:
    """Message of a choice while the message is generated.

    Attributes:
        use: how the message may call tools; None if it may not call any.
        content: text generated so far.
        calls: tool calls in the API's format.
    """

    use: ToolUse | None
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        use = self.use
        self._parser = None
        if use is not None:
            self._parser = ToolCallParser(use.form, use.functions, use.has_one, has_content=not use.is_forced)

    def push(self, text: str, is_last: bool) -> list[dict[str, Any]]:
        """Append text, and return the changes as stream deltas."""
        if self._parser is None:
            pieces: list[Piece] = [text] if text else []
        else:
            pieces = self._parser.push(text) + (self._parser.finish() if is_last else [])
        return [delta for delta in map(self._delta, pieces) if delta]

    def reason(self, reason: str | None) -> Literal["stop", "length", "tool_calls"]:
        """Return the finish reason of the message: "tool_calls" instead of "stop" if the message has calls."""
        if reason != "stop":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def message(self) -> AssistantMessage:
        content = self.content if self.content or not self.calls else None
        message: AssistantMessage = {"role": "assistant", "content": content, "refusal": None}
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    def _delta(self, piece: Piece) -> dict[str, Any]:
        if isinstance(piece, CallPiece):
            call: dict[str, Any] = {"index": piece.index, "function": {"arguments": piece.arguments}}
            if piece.name is not None:
                id = "".join(secrets.choice(ID_SIGNS) for _ in range(ID_LENGTH))
                function: CalledFunction = {"name": piece.name, "arguments": piece.arguments}
                self.calls.append({"id": id, "type": "function", "function": function})
                call |= {"id": id, "type": "function", "function": {**function}}
            else:
                self.calls[-1]["function"]["arguments"] += piece.arguments
            return {"tool_calls": [call]}
        for name in self.use.special if self.use is not None else ():
            piece = piece.replace(name, "")  # special tokens of the call syntax are not content
        self.content += piece
        return {"content": piece} if piece else {}


def check_calls(messages: list[dict[str, Any]], template: ChatTemplate) -> None:
    """Refuse messages with several calls if the template would write only the first.

    Raises:
        ApiError: a message has several calls. The error names this message.
    """
    for position, message in enumerate(messages):
        if len(message.get("tool_calls") or ()) > 1:
            try:
                has_one = tool_form(template).next_name is None
            except ArchetypeError:
                continue
            if has_one:
                problem = "the model's chat template writes only one call per message; send one message per call"
                raise invalid_value(f"messages[{position}].tool_calls", problem)
