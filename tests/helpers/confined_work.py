"""What tests let a process do that can be killed."""

import os
import time
from typing import Any


def answer(work: str, value: Any = None) -> Any:
    match work:
        case "give":
            return value
        case "work":
            while True:
                pass
        case "take":
            return len(bytes(value))
        case "repeat":
            return "a" * value
        case "list":
            return range(value)
        case "nest":
            return answer("nest")
        case "die":
            os._exit(value)
        case "print":
            print("among the replies")
            return "printed"
        case "sleep":
            time.sleep(value)
            return "slept"
    raise ValueError(work)
