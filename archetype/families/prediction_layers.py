"""Published layers for multi-token prediction, read as `further_tokens` of a decoder.

No paper states the order in which the projection reads the embedding and the hidden vector. The programs that run the
published weights agree (vLLM's `deepseek_mtp.py`, `glm4_moe_mtp.py`, `qwen3_next_mtp.py` and `mimo_mtp.py`; SGLang's
`deepseek_nextn.py` and `qwen3_next_mtp.py`): the embedding is first, except in MiMo. The hidden vector is always the
vector that the head reads, and both vectors are normalized separately.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from archetype.errors import CheckpointError
from archetype.families.rules import Rule, rule
from archetype.models.decoder.spec import Decoder
from archetype.models.further_tokens.spec import FurtherTokens
from archetype.spec.errors import inside

# Tensors of a prediction layer that duplicate a table of the model, and the duplicated parameters.
TABLES = (
    (re.compile(r".*\.\d+\.embed_tokens\.weight"), "embedding.token.weight"),
    (re.compile(r".*\.\d+\.shared_head\.head\.weight"), "lm_head.weight"),
)


@dataclass(frozen=True)
class Spelling:
    """Tensor names of prediction layers.

    Attributes:
        projection: pattern of the projection's name; group 1 is the prefix of all names of the layer, group 2 its
            number if there may be several.
        block: part of the tensor names between that prefix and the names inside a block.
        norms: norms of the hidden vector, of the embedding, and of the block's output.
        embedding_first: whether the projection reads the embedding before the hidden vector.
    """

    projection: str
    norms: tuple[str, str, str]
    block: str = ""
    embedding_first: bool = True


SPELLINGS = (
    Spelling(r"(.*\.(\d+)\.)eh_proj", ("hnorm", "enorm", "shared_head.norm")),  # DeepSeek-V3, GLM-4.5
    Spelling(r"((?:.*\.)?mtp\.)fc", ("pre_fc_norm_hidden", "pre_fc_norm_embedding", "norm"), "layers.0."),  # Qwen3-Next
    Spelling(r"(.*\.mtp_layers\.(\d+)\.)input_proj", ("hidden_layernorm", "token_layernorm", "final_layernorm"),
             embedding_first=False),  # MiMo
)
NORMS = ("hidden_norms", "embedding_norms", "final_norms")


class Predictions(NamedTuple):
    """Prediction layers in a file.

    Attributes:
        further_tokens: specification of the layers.
        rules: weight rules for their tensors.
        copies: tensors that duplicate a table of the model.
    """

    further_tokens: FurtherTokens
    rules: tuple[Rule, ...]
    copies: tuple[str, ...]


def read_predictions(names: Collection[str], rules: Sequence[Rule], model: Decoder) -> Predictions:
    """Read the prediction layers in a file. `rules` are the weight rules of the model without these layers.

    Raises:
        CheckpointError: there are no such layers, or one differs from all layers of the model.
    """
    spelling, layers = _layers(names)
    copies = copies_beside(names, model)
    further: list[Rule] = []
    block_layers = set[int]()
    for index, prefix in enumerate(layers):
        layer_names = [name for name in names if name.startswith(prefix) and name not in copies]
        projection = re.escape(prefix) + spelling.projection.rpartition(")")[2] + r"\.weight"
        inner = {f"{norm}.{kind}": f"{ours}.{index}.{kind}"
                 for norm, ours in zip(spelling.norms, NORMS, strict=True) for kind in ("weight", "bias")}
        block = []
        for name in layer_names:
            if re.fullmatch(projection, name):
                projected = f"further_tokens.projections.{index}.weight"
                # the model's projection reads the hidden vector first (DeepSeek-AI 2024b, equation 21)
                further.append(replace(rule(name, projected), swapped=spelling.embedding_first))
            elif (param := inner.get(name.removeprefix(prefix))) is not None:
                further.append(rule(name, f"further_tokens.{param}"))
            else:
                block.append(name)
        layer, added = _block(block, prefix + spelling.block, index, names, rules, model)
        block_layers.add(layer)
        further += added
    last = len(model.layers) - 1
    blocks = {model.layers[layer].own for layer in block_layers}
    if len(blocks) > 1:
        raise CheckpointError(layers[1], "differs in design from the prediction layer before it", REMEDY)
    (block_spec,) = (block.model_copy(update={"mixer": block.mixer.own}) for block in blocks)
    with inside("further_tokens"):
        predicted = FurtherTokens(
            count=len(layers), block=None if block_layers == {last} else block_spec, norm=model.final_norm
        )
    return Predictions(predicted, tuple(further), tuple(copies))


REMEDY = "load it without further_tokens"


def copies_beside(names: Iterable[str], model: Decoder) -> dict[str, str]:
    # a tied model has no table of the head
    tied = model.head.shares_table
    repeated = {name: param for name in names for pattern, param in TABLES if pattern.fullmatch(name)}
    return {name: TABLES[0][1] if tied else param for name, param in repeated.items()}


def _layers(names: Collection[str]) -> tuple[Spelling, list[str]]:
    # the spelling of the layers, and the prefix of each in order
    for spelling in SPELLINGS:
        prefixes: Mapping[int, str] = {
            int(match[2]) if match.re.groups > 1 else 0: match[1]
            for name in names
            if (match := re.fullmatch(spelling.projection + r"\.weight", name))
        }
        if prefixes:
            return spelling, [prefixes[index] for index in sorted(prefixes)]
    cause = "the file has no known layers for multi-token prediction"
    raise CheckpointError("further_tokens", cause, REMEDY)


def _block(
    block: list[str], prefix: str, index: int, names: Collection[str], rules: Sequence[Rule], model: Decoder
) -> tuple[int, list[Rule]]:
    # the last layer of the model with the same tensor names as the block, and the rules of the block
    for layer in reversed(range(len(model.layers))):
        every_rule = (rule.for_layer(layer) for rule in rules)
        layer_rules = [rule for rule in every_rule if rule.params[0].startswith(f"blocks.{layer}.")]
        match = re.match(rf"(?:.*?\.)?{layer}\.", layer_rules[0].hf) if layer_rules else None
        if match is None:
            continue
        tensors = {name.removeprefix(match[0]) for name in names if name.startswith(match[0])}
        if tensors == {name.removeprefix(prefix) for name in block}:
            block_prefix = f"further_tokens.blocks.{index}."
            return layer, [
                replace(
                    rule,
                    hf=prefix + rule.hf.removeprefix(match[0]),
                    params=tuple(block_prefix + param.removeprefix(f"blocks.{layer}.") for param in rule.params),
                )
                for rule in layer_rules
            ]
    raise CheckpointError(prefix, "has a block that differs from all layers of the model", REMEDY)
