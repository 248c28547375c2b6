"""Tools of a conversation: their declaration in requests, and the tool calls of responses."""

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, WrapValidator
from typing_extensions import TypedDict

from archetype.apps.serve.body import Fields
from archetype.apps.serve.errors import ApiError
from archetype.apps.serve.served_model import ServedModel
from archetype.errors import ArchetypeError, DataError, SpecError, nearest
from archetype.generate.tool_grammar import tool_grammar
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.tool_calls import CallPiece, Piece, ToolCallParser
from archetype.tokenizers.tool_form import ToolForm
from archetype.tokenizers.tool_rendering import tool_form

ID_SIGNS, ID_LENGTH = string.ascii_letters + string.digits, 9  # as Mistral's templates ask for; others take any


class Parameters(BaseModel):
    """The JSON schema of the arguments of a function."""

    model_config = ConfigDict(extra="allow")

    type: Literal["object"] = "object"
    properties: dict[str, dict[str, Any] | bool] = {}  # pydantic copies it
    required: list[str] = []
    defs: Annotated[dict[str, Any], Field(alias="$defs")] = {}
    definitions: dict[str, Any] = {}


class Function(Fields):
    """A function that an answer may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Fields):
    """A tool."""

    type: Literal["function"]
    function: Function


class FunctionName(Fields):
    """A function that is to be called."""

    name: str


class NamedTool(Fields):
    """The tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


def _as_sent(value: Any, check: Callable[[Any], Any]) -> Any:
    """Check a tool, and leave it as its client wrote it, which is how templates show it."""
    check(value)
    return value


SentTool = Annotated[Tool, WrapValidator(_as_sent)]  # a dict
Choice = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True)
class ToolUse:
    """How answers may call tools.

    Attributes:
        form: in which the model's template writes calls.
        functions: the schema of the arguments of each function that may be called, by name.
        has_one: whether there is one call at most.
        is_forced: whether there has to be one.
        special: special tokens that the form has, by their names.
    """

    form: ToolForm
    functions: Mapping[str, Mapping[str, Any]]
    has_one: bool
    is_forced: bool
    special: Mapping[str, int]

    def settings(self) -> dict[str, Any]:
        """Return engine settings: special tokens to keep in the text, and the grammar of a required call.

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
    """Return how responses may call the request's tools; None if they may not. Called in a text thread.

    Args:
        model: that answers.
        tools: as the request has them.
        choice: its `tool_choice`.
        parallel: its `parallel_tool_calls`.

    Raises:
        ApiError: the model's template has no tools, or the function that is to be called is none of them.
    """
    name = choice.function.name if isinstance(choice, NamedTool) else None
    if not tools or choice == "none":
        if name is not None or choice == "required":
            raise ApiError("invalid_value", "tool_choice: needs tools; give them, or leave it out", "tool_choice")
        return None
    functions = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    if len(functions) < len(tools):
        raise ApiError("invalid_value", "tools: two of them have one name; give each its own", "tools")
    if name is not None and name not in functions:
        message = f"tool_choice: {name!r:.80} is none of the tools; {nearest(name, functions)}"
        raise ApiError("invalid_value", message, "tool_choice")
    assert model.lm.template is not None
    try:
        form = tool_form(model.lm.template)
    except DataError as error:
        raise ApiError("unsupported_parameter", str(error), "tools") from None
    tokenizer = model.tokenizer
    form = form.until([model.special.get(id) or tokenizer.token(id) for id in model.lm.ends])
    special = {name: id for name, id in tokenizer.special_tokens.items() if any(name in one for one in form.literals)}
    named = functions if name is None else {name: functions[name]}
    has_one = parallel is False or name is not None or form.next_name is None
    return ToolUse(form, named, has_one, name is not None or choice == "required", special)


def takes_text(template: ChatTemplate) -> bool:
    """Return whether a template reads call arguments as JSON text; most read an object."""
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
    """Message of a choice while it is generated.

    Attributes:
        use: how it may call tools; None where it may not.
        content: its text.
        calls: its calls, as the API has them.
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
        """Append text, and return the changes as deltas of a stream."""
        if self._parser is None:
            pieces: list[Piece] = [text] if text else []
        else:
            pieces = self._parser.push(text) + (self._parser.finish() if is_last else [])
        return [delta for delta in map(self._delta, pieces) if delta]

    def reason(self, reason: str | None) -> Literal["stop", "length", "tool_calls"]:
        """Return why the message ended; a message with calls ends with "tool_calls" and not "stop"."""
        if reason != "stop":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def message(self) -> AssistantMessage:
        """Return the whole message."""
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
            piece = piece.replace(name, "")  # of the form's special tokens, which are in no content
        self.content += piece
        return {"content": piece} if piece else {}


def check_calls(messages: list[dict[str, Any]], template: ChatTemplate) -> None:
    """Refuse messages with several calls if the template would write only the first.

    Raises:
        ApiError: a message has several calls; names it.
    """
    for number, message in enumerate(messages):
        if len(message.get("tool_calls") or ()) > 1:
            try:
                has_one = tool_form(template).next_name is None
            except ArchetypeError:
                continue
            if has_one:
                place = f"messages[{number}].tool_calls"
                cause = "the model's chat template writes one call of a message; give each a message of its own"
                raise ApiError("invalid_value", f"{place}: {cause}", "messages")
