"""All limits of the server. `docs/guide/serving.md` lists them, and an error names the exceeded limit."""

from dataclasses import dataclass

MAX_CHOICES = 128  # prompts x n
MAX_INPUTS = 2048  # texts or images of one request
MAX_TOOLS = 128
MAX_INSPECTED_TOKENS = 2048
MAX_TRANSPLANTED_LAYERS = 512
MAX_TRANSPLANTED_SIZE = 2**20  # of a dimension of a tensor
ANSWER_BYTES = 2**24  # of a response without streaming
ALL_WAITING_BYTES = 2**27  # sent to all clients and not read yet; beyond, the slowest client is dropped
PICTURE_PIXELS = 2**25  # of one image
BYTES_OF_PIXEL = 8  # memory while an image is decoded
PICTURES_AT_ONCE = 16  # images of one request in memory
FILLED_BYTES = 2**7  # JSON of one prediction of a masked token
WORK_BYTES = 2**28  # memory for requests, however large the weights are
COUNTED_BYTES = 2**20  # smaller reservations are not counted
GRAMMARS_WAITING = 8  # grammars of one model that are being compiled or queue for it
# bytes of JSON per token or number; bytes of memory per byte of JSON while it is encoded
TOKEN_BYTES, LOGPROB_BYTES, CHAT_LOGPROB_BYTES, NUMBER_BYTES, BASE64_BYTES = 8, 32, 80, 22, 6
MEMORY_OF_JSON = 6


@dataclass(frozen=True)
class Limits:
    """Limits set on the command line.

    Attributes:
        body_bytes: size of a request body.
        body_seconds: time until the complete body has arrived.
        seconds: time until the response is complete.
    """

    body_bytes: int = 2**20
    body_seconds: float = 30.0
    seconds: float = 600.0
