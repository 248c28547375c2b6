"""Channel mixing of RWKV: a squared-ReLU network of each token and the one before it."""

from typing import ClassVar, Literal

from archetype.roles.feedforward import FeedForward
from archetype.spec.base import Flag
from archetype.spec.kinds import part
from archetype.spec.sizes import WideWidth

MixOf = Literal["token", "previous"]


@part
class ChannelMixing(FeedForward):
    """down(relu(up(x'))^2), optionally times sigmoid(receptance(x'')), where x' mixes x_t and x_{t-1} (RWKV).

    Each feature has a learned mixing weight (Peng 2023, section 3.1.3). The state is the last token's vector.

    Attributes:
        d_ff: inner width, F.
        receptance: whether the output is gated by sigmoid(receptance(x'')) (RWKV-4 to 6; not RWKV-7).
        mix_of: whether the learned mixing weights multiply the current token (RWKV-4) or the previous one (RWKV-7).
    """

    title: ClassVar[str] = "Channel mixing"
    separates_documents: ClassVar[bool] = False
    kind: Literal["channel_mixing"] = "channel_mixing"
    d_ff: WideWidth
    receptance: Flag = False
    mix_of: MixOf = "previous"
