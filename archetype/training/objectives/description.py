"""How many examples there are to learn from, in words."""


def described(
    examples: str, longest: int, num_cut: int = 0, num_left_out: int = 0, reason: str = "longer than {} tokens"
) -> str:
    """A sentence of examples, and of those that were cut or left out.

    Args:
        examples: how many there are to learn from, such as "1,000 texts".
        longest: the most tokens of an example.
        num_cut: how many were cut to it, of all that are trained on or held out.
        num_left_out: how many of all were left out.
        reason: why, where it is not their length.
    """
    cut = f", {num_cut:,} of all cut to {longest:,} tokens" if num_cut else ""
    left_out = f", {num_left_out:,} of all left out, {reason.format(f'{longest:,}')}" if num_left_out else ""
    return f"{examples}{cut}{left_out}"
