"""Default learning rate, which depends on the optimizer, the width and whether the model is pretrained."""

from typing import Any

from archetype.models.spec import ModelSpec
from archetype.training.optimizers import Optimizer

RATE_BY_WIDTH = 0.384  # times the optimizer's share, over the width: for AdamW 6e-3 at width 64, 5e-4 at 768
# Factors for a pretrained model: 5e-5 at width 768, as Devlin 2018 (appendix A.3) fine-tunes BERT, and 1e-5 at 4,096,
# as Touvron 2023 (section 3.1) fine-tunes Llama 2. Low-rank adapters take a rate several times as high.
FINE_TUNING, ADAPTER = 0.1, 0.5


def suitable_rate(
    optimizer: type[Optimizer], spec: ModelSpec, is_trained: bool, adapter: str = ""
) -> tuple[float, str]:
    """Return the default peak learning rate for an optimizer and a model, and the reason in a few words.

    Args:
        optimizer: optimizer of the recipe; if it has no `share_of_adamw`, its default rate is used for any width.
        is_trained: whether training starts from pretrained weights.
        adapter: kind of the adapter that is trained instead of the model; empty without an adapter.
    """
    width, share = getattr(spec, "d_model", None), optimizer.share_of_adamw
    follows_width = width is not None and share is not None and (spec.is_causal or is_trained)
    if width is not None and share is not None and follows_width:
        rate, why = share * RATE_BY_WIDTH / width, f"width {width}"
    else:
        default: Any = optimizer.model_fields["learning_rate"].default
        rate, why = float(default), f"the default of {optimizer.model_fields['kind'].default}"
    if not is_trained:
        return float(f"{rate:.1g}") if follows_width else rate, why
    part, what = (ADAPTER, f"a {adapter} adapter") if adapter else (FINE_TUNING, "fine-tuning")
    return float(f"{part * rate:.1g}"), f"{what}: {part:g} of the rate for random weights, by {why}"
