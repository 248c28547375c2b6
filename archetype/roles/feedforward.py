"""The role of feed-forward parts, which process each position separately."""

from typing import Annotated, ClassVar

from archetype.roles.content import Content
from archetype.roles.parallel import NeedsWholeRows
from archetype.spec.kinds import ByKind, Part


class FeedForward(Content, Part):
    """Base class of feed-forward parts."""

    needs: ClassVar[str] = "module"

    @property
    def separates_documents(self) -> bool:
        """Whether packed documents are computed independently. A part with a state overrides this with False."""
        return True

    @property
    def reads_streams(self) -> int:
        """Number of residual streams if the part reads and writes all of them, (B, T, n, D); 0 if it reads one vector.

        Its block adds what the part returns to the streams, without the residual wiring's weights.
        """
        return 0

    @property
    def reads_input(self) -> bool:
        """Whether it reads its input; otherwise it reads token ids only."""
        return True

    @property
    def delays_output(self) -> bool:
        """Whether part of the output is added to the residual stream only after the next layer."""
        return False

    @property
    def router_state(self) -> tuple[int, int]:
        """Features of the router's vector that it reads from the previous layer, and that it passes on; 0 for none."""
        return 0, 0

    @property
    def needs_whole_rows(self) -> NeedsWholeRows | None:
        if self.separates_documents:  # no state is carried from position to position
            return None
        cause = f"{getattr(self, 'kind', 'a part')} reads sequences in order, and parallel.context splits them"
        return NeedsWholeRows("", cause, "use a part without a state, or set parallel.context to 1")

    def check(self, width: int, causal: bool) -> None:
        """Call `invalid` if this part does not fit its stack. Takes the arguments of `Mixer.check`."""


AnyFeedForward = Annotated[FeedForward, ByKind(FeedForward)]
