"""Tensor names of single model types that follow no fixed replacement."""

import re


def first_half(name: re.Match[str]) -> str:
    """Return the name of a tensor of LongCat-Flash's experts in the first of these layers."""
    return f"{name[1]}{2 * int(name[2])}.moe.{name[3].replace('router.classifier.', 'router.')}"


def half_layer(name: re.Match[str]) -> str:
    """Return the name in one of the two layers of ours that LongCat-Flash's layer is; the first has the experts."""
    return f"{name[1]}{2 * int(name[2]) + int(name[4])}.{'mlp' if name[3] == 'mlps' else name[3]}.{name[5]}"


def stack_in_turn(name: re.Match[str]) -> str:
    """Return the name of a tensor of HRM's two stacks in alternating layers; the low stack has even numbers."""
    return f"{name[1]}layers.{2 * int(name[3]) + (name[2] == 'H')}.{name[4]}"


def pair_of_layers(name: re.Match[str]) -> str:
    """Return the name of a tensor of Dory, whose published files number attention and networks apart."""
    number, is_network = divmod(int(name[2]), 2)
    alphas = {"attn_alpha": "lambda_1", "mlp_alpha": "lambda_2"}
    return f"{name[1]}{number}.{alphas.get(name[3], 'mlp' if is_network else 'self_attn')}{name[4]}"
