"""Settings of a teacher in a recipe."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from archetype.errors import SpecError
from archetype.settings.training import TeacherModel
from archetype.spec.base import Flag, Index, NotNegative, Positive, Spec, WideSize


class Teacher(Spec):
    """Model that a run learns from (distillation; Hinton 2015).

    The loss in training is `logits` times the divergence from the teacher's distribution of the next token, plus `text`
    times the objective's own loss, plus `layers` times the distance of layer outputs. Validation measures the
    objective's own loss.

    Attributes:
        weights: type to which the teacher's matrices are packed (absent: as stored).
        logits: weight of the KL divergence, in nats per token, times the square of the temperature.
        temperature: divisor of both models' logits in this divergence.
        top_k: number of the teacher's most likely tokens that are compared; all other tokens count as one (absent: each
            token is compared).
        cache: folder that caches these tokens, so the teacher reads each batch once (absent: no cache).
        text: weight of the objective's own loss.
        layers: weight of the mean squared difference of layer outputs.
        matches: the teacher's layer of each layer; null for a layer that is not compared (absent: as in the transplant
            of the starting model, the same layers, or the teacher's spread evenly).
        projection: learn a matrix from the model's layer outputs to the teacher's, which may then be of another width.
    """

    model: TeacherModel
    weights: Literal["int8", "int4", "lossless"] | None = None
    logits: NotNegative = 1.0
    temperature: Positive = 1.0
    top_k: WideSize | None = None
    cache: str = ""
    text: NotNegative = 0.0
    layers: NotNegative = 0.0
    matches: tuple[Index | None, ...] | None = None
    projection: Flag = False

    def located(self, transplant: Mapping[str, Any] | None) -> Self:
        """Return a copy with absolute paths, so that a run can be resumed from another folder.

        Args:
            transplant: record of the transplant that the model comes from; if the teacher is its donor, layers match
                as there.
        """
        model, matches = Path(self.model).absolute(), self.matches
        if matches is None and transplant and Path(transplant["donor"]).absolute() == model:
            matches = transplant["layers"] or None
        cache = str(Path(self.cache).absolute()) if self.cache else ""
        return self.replace(model=str(model) if model.exists() else self.model, cache=cache, matches=matches)

    def check(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            SpecError: names the field.
        """
        if not self.logits and not self.text and not self.layers:
            raise SpecError("teacher", "all weights are 0, so there is no loss", "set teacher.logits")
        if self.cache and self.top_k is None:
            raise SpecError("teacher.cache", "only the most likely tokens are stored", "set teacher.top_k")
        if self.cache and self.layers:
            cause = "layer outputs are not stored, so the teacher reads every batch again"
            raise SpecError("teacher.cache", cause, "remove teacher.cache or teacher.layers")
