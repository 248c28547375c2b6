"""Inference of the head: tied or not, scale, soft cap and what precedes the logits."""

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.embedding import outer_norm
from archetype.convert.infer.quirks import QUIRKS, FamilyQuirks
from archetype.convert.infer.spellings import HEAD_SCALE, INITIAL_STD
from archetype.convert.infer.tensors import GroupedTensors
from archetype.parts.activation.spec import GELU, NoActivation
from archetype.parts.gain.spec import Gain
from archetype.parts.head.spec import ClassHead, HeadTransform, LanguageModelHead


def read_head(info: CheckpointInfo, tensors: GroupedTensors, d_model: int) -> LanguageModelHead | ClassHead:
    """Return the head: logits of the vocabulary, or of classes."""
    scale, softcap = _head_scale(info, d_model), info.config.optional_positive("final_logit_softcapping")
    if (head := info.class_head) is not None:
        if "classifier.weight" not in tensors.outer:
            raise info.missing(f"{info.config.place}: architectures", "a classification head with an unknown name")
        num_classes, _ = info.sides(tensors.outer["classifier.weight"])
        return head.replace(num_classes=num_classes, bias="classifier.bias" in tensors.outer)
    return LanguageModelHead(
        tied=_tied(info, tensors),
        bias="lm_head.bias" in tensors.outer,
        scale=scale,
        # Dory
        gain=Gain(stored=info.positive(INITIAL_STD, 0.02)) if "lm_head.gain.weight" in tensors.outer else None,
        softcap=softcap,
        transform=_transform(info, tensors),
    )


def _tied(info: CheckpointInfo, tensors: GroupedTensors) -> bool:
    # a file that claims an untied head but stores none is incomplete: not tied, so that the missing tensor is reported
    return "lm_head.weight" not in tensors.outer and info.config.get("tie_word_embeddings", True) is not False


def _transform(info: CheckpointInfo, tensors: GroupedTensors) -> HeadTransform | None:
    # the dense layer before the logits of BERT; RoBERTa's and ELECTRA's code fixes its activation
    name = tensors.outer.get("lm_head.dense.weight")
    if name is None:
        return None
    if name.endswith("project_out.weight"):
        return HeadTransform(activation=NoActivation(), width=info.sides(name)[0], bias=False)
    activation = GELU() if name.startswith(("lm_head.", "generator_predictions.")) else info.activation(gated=False)
    width = info.sides(name)[0]
    return HeadTransform(
        activation=activation,
        norm=outer_norm(info, tensors, "lm_head.norm"),
        width=None if width == tensors.d_model else width,
        bias="lm_head.dense.bias" in tensors.outer,
    )


def _head_scale(info: CheckpointInfo, d_model: int) -> float:
    if info.config.get("logits_scaling") is not None:
        scaling = info.config.positive("logits_scaling")
        why = "no file states whether logits_scaling divides or multiplies"
        return scaling if info.settle("logits_times_scaling", (False, True), why) else 1.0 / scaling
    if info.config.get("dim_model_base") is not None:
        # MiniCPM (muP): logits are divided by d_model / dim_model_base
        return info.config.positive("dim_model_base") / d_model
    scale = info.positive(HEAD_SCALE, 1.0)
    return 1.0 if QUIRKS.get(info.outer_type, FamilyQuirks()).unscaled_logits else scale
