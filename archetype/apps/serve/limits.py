"""What a request may cost: all limits of the server. `docs/guide/serving.md` lists them; a refusal names its own."""

from dataclasses import dataclass

MAX_CHOICES = 128  # prompts x n
MAX_INPUTS = 2048  # texts or pictures of one request
MAX_TOOLS = 128
MAX_INSPECTED_TOKENS = 2048
ANSWER_BYTES = 2**24  # of an answer that is sent as a whole
ALL_WAITING_BYTES = 2**27  # of all answers that clients have not taken; then the client that is slowest is dropped
PICTURE_PIXELS = 2**25  # of a picture as it is sent
BYTES_OF_PIXEL = 8  # of memory, while it is read
PICTURES_AT_ONCE = 16  # that are in memory, of one request
FILLED_BYTES = 2**7  # of JSON, for each prediction of a masked token
WORK_BYTES = 2**28  # memory for requests that there is in any case, however much the weights take
COUNTED_BYTES = 2**20  # less is not counted: so much has each request
GRAMMARS_WAITING = 8  # that are not compiled yet, of one model
# bytes of JSON that a token or a number takes at most, in the middle; and how many of memory, while it is made
TOKEN_BYTES, LOGPROB_BYTES, CHAT_LOGPROB_BYTES, NUMBER_BYTES, BASE64_BYTES = 8, 32, 80, 22, 6
MEMORY_OF_JSON = 6


@dataclass(frozen=True)
class Limits:
    """The limits that the command line sets.

    Attributes:
        body_bytes: of a body.
        body_seconds: until the body has arrived.
        seconds: until it is answered.
    """

    body_bytes: int = 2**20
    body_seconds: float = 30.0
    seconds: float = 600.0
