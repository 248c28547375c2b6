"""Loss of a training pass with a teacher."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.estimate.memory import MemoryCost
from archetype.estimate.report import cost_report
from archetype.models.build import Model
from archetype.models.cost import model_cost
from archetype.models.decoder.module import check_documents_are_separate
from archetype.models.spec import ModelSpec
from archetype.nn.parameter_names import TRAINING_ONLY
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.same_ids import awkward_cases
from archetype.training.chunked_loss import (
    Head,
    chunk_rows,
    chunked_loss,
    cross_entropy_and_gradient,
    of_predicted,
    predicted,
)
from archetype.training.objectives.base import Counts, LossOutput, Objective
from archetype.training.stages import Stage
from archetype.training.teacher.cache import TeacherCache
from archetype.training.teacher.divergence import Classes, divergence_and_gradient
from archetype.training.teacher.layers import (
    check_fitted,
    check_widths,
    install_projections,
    matched_layers,
    mean_square,
    run_layers,
)
from archetype.training.teacher.spec import Teacher
from archetype.weights.fingerprint import weights_fingerprint

if TYPE_CHECKING:
    from archetype.training.recipe import Recipe

OpenTeacher = Callable[[Teacher, torch.device], tuple[Model, Tokenizer | None]]
Said = Callable[[slice], Classes]  # a teacher's distributions for some of the predicted tokens


class TeacherMemory(NamedTuple):
    """Bytes of a teacher in a training step: weights, outputs kept for the loss, and peak during its pass."""

    weights: int
    outputs: int
    running: int


class TeacherLoss:
    """Weighted sum of the divergence from a teacher, the distance of layer outputs, and the objective's own loss.

    Attributes:
        fingerprint: hash of the teacher's weights.
        layer: layer that this stage fits to its teacher layer; None if the whole model is trained.
    """

    def __init__(self, settings: Teacher, teacher: Model, spec: ModelSpec, seed: int = 0) -> None:
        self.settings, self.spec, self.seed = settings, spec, seed
        self.layer: int | None = None
        self.teacher: Any = teacher.requires_grad_(False).eval()
        self.fingerprint = weights_fingerprint(teacher)
        has_layers = len(spec.stacks) == len(teacher.spec.stacks) == 1
        self.matches = matched_layers(settings, spec, teacher.spec) if has_layers else {}
        self.cache: TeacherCache | None = None
        if settings.cache:
            identity = {"weights": self.fingerprint, "temperature": settings.temperature, "top_k": settings.top_k}
            self.cache = TeacherCache(Path(settings.cache), identity)

    @classmethod
    def open(
        cls,
        recipe: "Recipe",
        spec: ModelSpec,
        tokenizer: Tokenizer | None,
        objective: Objective,
        device: torch.device,
        open_teacher: OpenTeacher | None,
    ) -> "TeacherLoss":
        """Load the teacher of a recipe.

        Raises:
            SpecError: the teacher, its vocabulary or its layers do not suit the model; the message names the field.
        """
        settings = recipe.teacher
        assert settings is not None
        settings.check()
        if open_teacher is None:
            raise SpecError("teacher", "cannot be loaded here", "train with `archetype train`")
        is_product = spec.continues_text and spec.head.is_product
        if not is_product or type(objective).compute_loss is not Objective.compute_loss:
            cause = "needs a cross-entropy of next tokens"
            raise SpecError("teacher", cause, "use next_token or chat with a causal model")
        teacher, of_teacher = open_teacher(settings, device)
        _check_vocabulary(settings.model, teacher.spec, of_teacher, spec, tokenizer)
        longest = (objective.batch_shape or (0, None))[1] or 0
        if longest > teacher.spec.context_length:
            cause = f"{longest} is more than the teacher's context of {teacher.spec.context_length}"
            raise SpecError("sequence_length", cause, "use shorter sequences or another teacher")
        if "document_ids" in objective.inputs_and_targets(objective.batch(0))[0]:
            check_documents_are_separate(teacher.spec, "data.cross_document_attention", "use another teacher")
        if settings.layers:
            check_widths(settings, spec, teacher.spec)
        loss = cls(settings, teacher, spec, recipe.seed)
        for index, stage in enumerate(recipe.stages):
            if isinstance(stage.fit, int):
                check_fitted(stage.fit, loss.matches, spec, teacher.spec, f"stages[{index}].fit")
        return loss

    def install(self, model: nn.Module) -> None:
        """Add the matrices to the teacher's width to a model, before its optimizer is built."""
        if self.settings.layers and self.settings.projection:
            install_projections(model, self.matches, self.teacher.spec.stacks[0].d_model, self.seed)

    def enter(self, stage: Stage | None) -> None:
        """Begin a stage; None after all stages."""
        self.layer = stage.fit if stage is not None and isinstance(stage.fit, int) else None

    def loss(
        self, objective: Objective, model: Any, inputs: Mapping[str, Any], targets: Tensor, counts: Counts
    ) -> LossOutput:
        """Run the teacher and the model, and return the loss of the stage.

        Nothing is compared at positions without a target. The arguments are those of `Objective.loss_of`.
        """
        wrapped, model = model, getattr(model, "module", model)  # by DDP, whose pass prepares its exchanges
        count, selected = predicted(targets.flatten(), counts[0] if counts else None)
        if self.layer is not None:
            return self._fitted(self.layer, model, inputs, count, selected)
        settings = self.settings
        compared = self.matches if settings.layers else {}
        said, theirs = self._say(inputs, targets, selected)
        with model.recording([layer + 1 for layer in compared]) if compared else nullcontext({}) as own:
            output = wrapped(**inputs, with_logits=False)
        ids, x = (
            of_predicted(y, selected) for y in (targets.flatten(), model.lm_head.features(output.hidden).flatten(0, 1))
        )
        smoothing, head = objective.label_smoothing, Head.of(model.lm_head, model.token_table)
        loss = chunked_loss(x, head, lambda z, part: self._of_logits(z, part, said, ids, smoothing))
        if compared:
            loss = loss + settings.layers * self._distance(model, own, theirs, selected)
        if output.aux_loss is not None:
            loss = loss + output.aux_loss
        return objective.with_further(LossOutput(loss, count, None), output, model, inputs, targets, counts)

    def _of_logits(
        self, z: Tensor, part: slice, said: Said | None, ids: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        # loss of each token of a chunk, and the gradient of their sum with respect to its logits (n, V)
        terms, settings = [], self.settings
        if said is not None:
            weight = settings.logits * settings.temperature**2
            terms.append((weight, divergence_and_gradient(z, said(part), settings.temperature)))
        if settings.text:  # last, because it overwrites the logits
            terms.append((settings.text, cross_entropy_and_gradient(z, ids[part, None], smoothing)))
        nats, gradient = z.new_zeros(len(z)), torch.zeros_like(z)
        for weight, (nats_of_term, gradient_of_term) in terms:
            nats, gradient = nats + weight * nats_of_term, gradient.add_(gradient_of_term, alpha=weight)
        return nats, gradient

    @torch.no_grad()
    def _say(
        self, inputs: Mapping[str, Any], targets: Tensor, selected: Tensor | None
    ) -> tuple[Said | None, dict[int, Any]]:
        # the teacher's distributions, and its streams after the layers that are compared
        settings = self.settings
        if not settings.logits and not settings.layers:
            return None, {}
        if self.cache is not None:
            name = self.cache.name({"targets": targets, **inputs})
            classes = self.cache.read(name, targets.device)
            if classes is not None:
                return classes.of, {}
        places = {origin + 1 for origin in self.matches.values()} if settings.layers else set()
        with self.teacher.recording(places) if places else nullcontext({}) as theirs:
            hidden = self.teacher(**inputs, with_logits=False).hidden
        if not settings.logits:
            return None, theirs
        hidden, is_cast = of_predicted(hidden.flatten(0, 1), selected), torch.is_autocast_enabled(hidden.device.type)
        if settings.top_k is None:
            return lambda part: Classes(self._log_p(hidden[part], is_cast)), theirs
        rows = chunk_rows(self.teacher.spec.vocab_size)
        parts = [Classes.most_likely(self._log_p(x, is_cast), settings.top_k) for x in hidden.split(rows)]
        classes = Classes(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        if self.cache is not None:
            self.cache.write(name, classes)
        return classes.of, theirs

    @torch.no_grad()
    def _log_p(self, hidden: Tensor, is_cast: bool) -> Tensor:
        with torch.autocast(hidden.device.type, torch.bfloat16, enabled=is_cast):  # as the model, whose loss leaves it
            logits: Tensor = self.teacher.lm_head(hidden[None], self.teacher.token_table)[0]
        return (logits.float() / self.settings.temperature).log_softmax(1)

    def _distance(self, model: Any, own: dict[int, Any], theirs: dict[int, Any], selected: Tensor | None) -> Tensor:
        projections = getattr(model, TRAINING_ONLY, {})
        distances = []
        for layer, origin in self.matches.items():
            y = own[layer + 1]
            y = projections[str(layer)](y) if self.settings.projection else y
            distances.append(mean_square(y, theirs[origin + 1], selected))
        return torch.stack(distances).mean()

    def _fitted(
        self, layer: int, model: Any, inputs: Mapping[str, Any], count: int, selected: Tensor | None
    ) -> LossOutput:
        # the layer reads what the teacher's layer reads, so that no other layer is computed or has a gradient
        origin = self.matches[layer]
        with torch.no_grad(), self.teacher.recording([origin]) as inner:
            target, _ = run_layers(self.teacher, inputs, range(origin + 1))
        y, context = run_layers(model, inputs, range(layer, layer + 1), inner[origin].to(model.dtype))
        loss, aux_loss = mean_square(y, target, selected), context.aux_loss
        return LossOutput(loss if aux_loss is None else loss + aux_loss, count, None)

    def memory(self, batch: int, length: int, fits_layer: bool = False) -> TeacherMemory:
        """Estimate the memory of the teacher in a step on `batch` sequences of `length` tokens.

        Args:
            fits_layer: whether the step fits one layer, whose vectors count as the model's.
        """
        teacher, settings, num_tokens = self.teacher, self.settings, batch * length
        weights = sum(tensor.nbytes for tensor in (*teacher.parameters(), *teacher.buffers()))
        # without gradients, one block at a time has activations
        block = MemoryCost(model_cost(teacher.spec), "float32").saved_activations(batch, length).largest_block
        if fits_layer:
            return TeacherMemory(weights, 0, block)
        width, vocab_size = getattr(teacher.spec, "d_model", 0), teacher.spec.vocab_size
        num_compared = len(self.matches) if settings.layers else 0
        streams = 4 * num_tokens * num_compared * width
        logits = 3 * 4 * min(num_tokens, chunk_rows(vocab_size)) * vocab_size  # one chunk
        projections = 16 * num_compared * width * self.spec.stacks[0].d_model if settings.projection else 0
        # vectors, of which the loss computes logits chunk by chunk; or float32 log-probabilities and int64 ids
        of_token = 4 * width if settings.top_k is None else 12 * settings.top_k + 4
        outputs = num_tokens * of_token + (logits if settings.top_k is None else 0)
        return TeacherMemory(weights, streams + outputs + projections, streams + max(block, logits))

    def flops(self, batch: int, length: int | None) -> float:
        """Return the FLOPs of the teacher's pass."""
        return cost_report(self.teacher.spec, batch, length).flops["forward"]


def _check_vocabulary(
    source: str, teacher: ModelSpec, of_teacher: Tokenizer | None, spec: ModelSpec, tokenizer: Tokenizer | None
) -> None:
    if not teacher.continues_text:
        raise SpecError("teacher.model", f"{source} does not predict next tokens", "use a causal model")
    theirs, own = (getattr(each, "vocab_size", 0) for each in (teacher, spec))
    if theirs != own:
        cause = f"{source} has a vocabulary of {theirs:,} tokens, and the model one of {own:,}"
        raise SpecError("teacher.model", cause, "use a teacher with the model's vocabulary")
    if of_teacher is None or tokenizer is None:
        return
    for text, ids in awkward_cases(tokenizer):
        if of_teacher.encode_with_special_tokens(text) != ids:
            cause = f"the tokenizer of {source} has other ids for {text!r:.40}"
            raise SpecError("teacher.model", cause, f"use its tokenizer: --tokenizer {source}")
