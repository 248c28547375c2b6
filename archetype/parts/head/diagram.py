"""Drawing of heads, at the end of a stream."""

from archetype.parts.head import spec
from archetype.roles.drawing import Step, pill, title
from archetype.roles.head import Head
from archetype.spec.registry import provided, provides


def head_steps(head: Head, width: str, table: str = "embedding.token") -> tuple[Step, ...]:
    """Return the boxes of a head. `width` is in letters, and `table` names the box whose table a tied head shares."""
    return (provided("diagram", type(head)) or unknown_head)(head, width, table)


@provides("diagram", spec.LanguageModelHead)
def language_model_head(head: spec.LanguageModelHead, width: str, table: str) -> tuple[Step, ...]:
    cap = head.softcap
    logits = _logits(head.tied, _inner(width, head.table_width), table)._replace(gives="" if cap else LOGITS.gives)
    if head.gain is not None:
        logits = logits._replace(label="lm_head, a factor of each logit")
    steps = [*_transform(head.transform, width, "lm_head"), logits]
    if cap is not None:
        steps.append(Step("softcap", f"cap · tanh(z / {cap:g})", "", "operation", "head", slim=True))
    return (*steps, LOGITS)


@provides("diagram", spec.MaskedLanguageModelHead, spec.MaskedLogitsHead)
def masked_language_model_head(
    head: spec.MaskedLanguageModelHead | spec.MaskedLogitsHead, width: str, table: str
) -> tuple[Step, ...]:
    return language_model_head(head.as_language_model_head, width, table)


@provides("diagram", spec.ClassificationHead, spec.TokenClassificationHead, spec.SpanHead)
def classification_head(head: spec.ClassHead, width: str, table: str) -> tuple[Step, ...]:
    inner = _inner(width, head.transform.width if head.transform else None)
    classifier = Step("classifier", "classifier", f"{inner} → Y", "head", "head", gives=CLASSES.gives)
    answer = TOKEN_CLASSES if head.labels_tokens else CLASSES
    return *_transform(head.transform, width, "classifier"), classifier, answer


@provides("diagram", spec.NoHead)
def no_head(head: spec.NoHead, width: str, table: str) -> tuple[Step, ...]:
    return (pill("vectors", "vectors", "(B, T, D)", "output"),)


def unknown_head(head: Head, width: str, table: str) -> tuple[Step, ...]:
    # a single box: the inside of an unknown head is not known
    answer = CLASSES if head.classifies else TOKEN_CLASSES if head.labels_tokens else LOGITS
    return Step("classifier" if head.has_classes else "lm_head", title(head), "", "head", "head"), answer


CLASSES = pill("classes", "classes", "(B, Y)", "output", "logits")
TOKEN_CLASSES = pill("classes", "classes", "(B, T, Y)", "output", "logits")
LOGITS = pill("logits", "logits", "(B, T, V)", "output", "logits")


def _logits(tied: bool, width: str, table: str) -> Step:
    return Step("lm_head", "lm_head", f"{width} → V", "head", "head", tied=table if tied else "")


def _inner(width: str, inner: int | None) -> str:
    return width if inner is None else "D_e"


def _transform(transform: spec.HeadTransform | None, outer: str, head: str) -> tuple[Step, ...]:
    if transform is None:
        return ()
    width = _inner(outer, transform.width)
    label = "dense" if transform.activation.is_absent else f"dense, {title(transform.activation)}"
    dense = Step(f"{head}.dense", label, f"{outer} → {width}", "head", "head")
    if transform.norm.is_absent:
        return (dense,)
    return dense, Step(f"{head}.norm", title(transform.norm), width, "norm", "head", slim=True)
