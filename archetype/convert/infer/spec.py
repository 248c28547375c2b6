"""A decoder of a family that is not registered: its specification, its weight rules, and a report of what they rest on.

Read by the keys of config.json, and the names and shapes of the tensors. What neither settles is assumed, and said; a
part that is missing here is refused by its name.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from archetype import spec
from archetype.convert.infer.checkpoint_info import CheckpointInfo, Shapes
from archetype.convert.infer.feedforward import read_network
from archetype.convert.infer.mixer import ModelDims, read_mixer
from archetype.convert.infer.quirks import CONTEXT, EMBEDDING_SCALE, HEAD_SCALE, INITIAL, NEUTRAL
from archetype.convert.infer.rules import rules_of
from archetype.convert.infer.tensors import GroupedTensors, sort
from archetype.convert.infer.wiring import read_wiring
from archetype.errors import CheckpointError
from archetype.families.config import BOOKKEEPING, Config
from archetype.families.family import Family, InferenceReport
from archetype.families.format import Format
from archetype.spec.base import explain

USUAL_CONTEXT = 2048


def read_unknown(values: dict[str, Any], shapes: Shapes, place: str = "config.json") -> Family:
    """A family of one model, whose format reads this folder.

    Args:
        values: of config.json.
        shapes: of every tensor, by name.
        place: the file, for messages.

    Raises:
        CheckpointError: names the tensor or key that is not understood, or the part that is missing.
    """
    clues = _clues(values, shapes, place)
    clues.refuse_what_is_missing()
    found = sort(clues)
    try:
        model, wirings = _model(clues, found)
    except ValidationError as error:
        raise explain(error).at(place) from None
    return Family(
        clues.type,
        {},
        Format(
            model_type=clues.type,
            architecture=clues.type,
            keys=InferredKeys(clues.type, model),
            rules=partial(rules_of, clues, found, wirings),
            prefix="",
            ignored=tuple(re.escape(name) for name in found.left_out),
        ),
        _reading(clues, found),
    )


@dataclass(frozen=True)
class InferredKeys:
    """The specification that was read from one folder, whatever its config.json says besides."""

    model_type: str
    model: spec.Decoder

    def read(self, config: Config) -> spec.Decoder:
        """The specification."""
        config.used |= config.values.keys()
        return self.model

    def write(self, model: spec.ModelSpec) -> dict[str, Any]:
        """Refuse to write one."""
        raise CheckpointError(self.model_type, "is read, and cannot be written", "export it as a known family")


def _clues(values: dict[str, Any], shapes: Shapes, place: str) -> CheckpointInfo:
    """Of a model that also sees or hears, the part that reads text."""
    text = values.get("text_config")
    if isinstance(text, dict):
        outer = {key: value for key, value in values.items() if key != "text_config"}
        values = outer | text | {key: outer[key] for key in ("tie_word_embeddings",) if key in outer}
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{place}: model_type", f"{model_type!r} names no family", "fix the file")
    return CheckpointInfo(Config(values, place), shapes, model_type)


def _model(clues: CheckpointInfo, found: GroupedTensors) -> tuple[spec.Decoder, list[dict[str, str]]]:
    """The specification, and each layer's norms."""
    frame, config = found.frame, clues.config
    vocab_size, d_model = clues.sides(frame["embedding.token.weight"])
    around = ModelDims(d_model, _context(clues, found), found.transposed)
    final = "final_norm.weight" in frame
    wirings = [read_wiring(clues, layer, final) for layer in found.layers]
    scale = _residual_scale(clues, len(found.layers))
    blocks = tuple(
        spec.Block(
            wiring=wiring,
            mixer=read_mixer(clues, layer, around),
            feedforward=read_network(clues, layer, found.transposed),
            residual_scale=scale,
        )
        for layer, (wiring, _) in zip(found.layers, wirings, strict=True)
    )
    weightless = not any(norms for _, norms in wirings)
    made = spec.Decoder(
        vocab_size=vocab_size,
        context_length=around.context_length,
        d_model=d_model,
        embedding=_embedding(clues, found, around),
        layers=blocks,
        final_norm=_norm(clues, found, "final_norm", assumed=weightless),
        head=spec.LanguageModelHead(
            tied=_tied(clues, found),
            bias="lm_head.bias" in frame,
            scale=_head_scale(clues, d_model),
            softcap=config.optional_positive("final_logit_softcapping"),
            transform=_transform(clues, found),
        ),
        initialization=spec.NormalInitialization(std=clues.positive(INITIAL, 0.02)),
    )
    return made, [norms for _, norms in wirings]


def _norm(clues: CheckpointInfo, found: GroupedTensors, ours: str, assumed: bool = False) -> spec.Norm:
    """A norm around the layers: none where no tensor is one, except where the layers' own have no weights either."""
    if f"{ours}.weight" not in found.frame:
        return clues.norm(bias=False, weight=False) if assumed else spec.NoNorm()
    return clues.norm(bias=f"{ours}.bias" in found.frame)


def _context(clues: CheckpointInfo, found: GroupedTensors) -> int:
    rows, given = _rows(clues, found, "embedding.position"), clues.size(CONTEXT)
    if rows is not None and clues.habit.after_padding:
        return rows - clues.config.count("pad_token_id", 1) - 1
    if given is None and rows is None:
        clues.assume("context_length", USUAL_CONTEXT, "no key names it")
    return min(given or rows or USUAL_CONTEXT, rows or given or USUAL_CONTEXT)


def _rows(clues: CheckpointInfo, found: GroupedTensors, table: str) -> int | None:
    name = found.frame.get(f"{table}.weight")
    return None if name is None else clues.sides(name)[0]


def _embedding(clues: CheckpointInfo, found: GroupedTensors, around: ModelDims) -> spec.Embedding:
    scale = clues.positive(EMBEDDING_SCALE, 1.0)
    if clues.habit.root_scaled or clues.config.get("scale_embedding"):
        scale = around.d_model**0.5
    return spec.Embedding(
        position=_added(clues, found, around),
        scale=scale,
        num_token_types=_rows(clues, found, "embedding.token_type") or 0,
        norm=_norm(clues, found, "embedding.norm", assumed=clues.habit.embedding_norm),
    )


def _added(clues: CheckpointInfo, found: GroupedTensors, around: ModelDims) -> spec.EmbeddingPosition:
    rows = _rows(clues, found, "embedding.position")
    if rows is not None:
        return spec.Learned(offset=rows - around.context_length)
    added = clues.habit.added
    if added is not None and clues.habit.inclusive:
        half = max(around.d_model // 2, 2)
        return added.replace(theta=added.theta ** (half / (half - 1)))
    return added or spec.NoPosition()


def _tied(clues: CheckpointInfo, found: GroupedTensors) -> bool:
    """As the tensors show; a file without a table of the head may still say that it has one, and then lacks it."""
    return "lm_head.weight" not in found.frame and clues.config.get("tie_word_embeddings", True) is not False


def _transform(clues: CheckpointInfo, found: GroupedTensors) -> spec.HeadTransform | None:
    """BERT's layer before the logits, whose activation RoBERTa fixes."""
    name = found.frame.get("lm_head.dense.weight")
    if name is None:
        return None
    activation = "gelu" if name.startswith("lm_head.") else clues.activation(gated=False)
    return spec.HeadTransform(activation=activation, norm=_norm(clues, found, "lm_head.norm"))


def _head_scale(clues: CheckpointInfo, d_model: int) -> float:
    if clues.config.get("logits_scaling") is not None:
        return 1.0 / clues.config.positive("logits_scaling")
    if clues.config.get("dim_model_base") is not None:
        return clues.config.positive("dim_model_base") / d_model
    return clues.positive(HEAD_SCALE, 1.0)


def _residual_scale(clues: CheckpointInfo, num_layers: int) -> float:
    if clues.config.get("scale_depth") is not None:
        return float(clues.config.positive("scale_depth") / num_layers**0.5)
    return clues.positive(("residual_multiplier",), 1.0)


def _reading(clues: CheckpointInfo, found: GroupedTensors) -> InferenceReport:
    config = clues.config
    neutral = re.compile("|".join(f"(?:{pattern})" for pattern in NEUTRAL))
    unknown = [
        f"{key}={repr(value)[:60]}"
        for key, value in config.values.items()
        if key not in config.used | BOOKKEEPING and value is not None and not neutral.fullmatch(key)
    ]
    recognized = sorted(key for key in config.used if config.values.get(key) is not None)
    placed = len(clues.shapes) - len(found.left_out)
    return InferenceReport(tuple(recognized), placed, tuple(clues.assumed), tuple(unknown), tuple(found.left_out))
