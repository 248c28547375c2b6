"""How many examples of a property are drawn: few in every run, 15 times as many in `make soak`."""

import os
from typing import Any

from hypothesis import settings

TIMES = int(os.environ.get("ARCHETYPE_EXAMPLES", "1"))


def examples(count: int, **others: Any) -> settings:
    """Settings with so many examples, which ARCHETYPE_EXAMPLES multiplies, and any others."""
    return settings(max_examples=count * TIMES, **others)
