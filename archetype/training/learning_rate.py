"""The learning rate that is chosen where nothing says one, and why."""

from typing import Any

from archetype.models.spec import ModelSpec
from archetype.training.optimizers import Optimizer

RATE_BY_WIDTH = 0.384  # times AdamW's share, over the width: 6e-3 for 64 features, 5e-4 for 768
# Shares of that for a model that is trained already: 5e-5 for 768 features, as Devlin 2018 (appendix A.3) tunes BERT,
# and 1e-5 for 4,096, as Touvron 2023 (section 3.1) tunes Llama 2. Low-rank adapters take several times as much.
FINE_TUNING, ADAPTER = 0.1, 0.5


def suitable_rate(
    optimizer: type[Optimizer], spec: ModelSpec, is_trained: bool, adapter: str = ""
) -> tuple[float, str]:
    """The peak of the learning rate that suits an optimizer, a model and what of it learns; and why, in a few words.

    Args:
        optimizer: the kind; one that says no share of AdamW's rate has a default that fits models of any width.
        spec: of the model.
        is_trained: whether it begins with trained weights.
        adapter: the kind of the adapter that learns in its place; empty where none does.
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
    return float(f"{part * rate:.1g}"), f"{what}: {part:g} of what suits random weights, by {why}"
