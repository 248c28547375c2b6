"""Descriptions of training data: how many examples there are, and how many were truncated or left out."""


def described(
    examples: str, longest: int, num_cut: int = 0, num_left_out: int = 0, reason: str = "longer than {} tokens"
) -> str:
    """Describe the examples, and count those that were cut or left out.

    Args:
        examples: how many there are to learn from, such as "1,000 texts".
        longest: maximal number of tokens per example.
        num_cut: number of training and validation examples that were cut to it.
        num_left_out: number of training and validation examples that were left out.
        reason: why they were left out; {} stands for `longest`.
    """
    cut = f", {num_cut:,} of all cut to {longest:,} tokens" if num_cut else ""
    left_out = f", {num_left_out:,} of all left out, {reason.format(f'{longest:,}')}" if num_left_out else ""
    return f"{examples}{cut}{left_out}"
