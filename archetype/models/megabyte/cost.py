"""Cost of MegaByte."""

from archetype.cost.formula import Counts, symbol
from archetype.cost.registry import cost_of, linear
from archetype.cost.work import INT64, TrainingWork, Work
from archetype.models.cost import ModelCost
from archetype.models.megabyte import spec
from archetype.models.stack.cost import StackCost, StatePart
from archetype.parts.head.cost import HeadCost


@cost_of(spec.MegaByte)
class MegaByteCost(ModelCost):
    """Cost of a global model over patches and a local model over the bytes of each patch.

    Per decoded byte, 1 / J of a step of the global model is counted, which runs once per patch, and a whole patch of
    the local model, which recomputes its patch for each byte. A byte's vector has 1 / J of the global width.
    """

    def __init__(self, model: spec.MegaByte) -> None:
        super().__init__(model)
        self.patch_size, self.max_length = model.patch_size, model.context_length
        self.patch, self.vocabulary = symbol("J", model.patch_size), symbol("V", model.vocab_size)
        self.positions = symbol("T_max", model.context_length)
        self.global_d, self.local_d = (stack.d for stack in self.stacks)
        self.byte_d = self.global_d / self.patch
        self.head = HeadCost.of(model.head, self.local_d, model.vocab_size)

    def embedding_parameters(self) -> Counts:
        return {
            "global_embedding.token": self.vocabulary * self.byte_d,
            "global_embedding.position": self.positions * self.byte_d,
            "global_embedding.start": self.global_d,
            "local_embedding.token": self.vocabulary * self.local_d,
            "local_embedding.start": self.local_d,
            "projection": linear(self.byte_d, self.local_d, bias=True),
        }

    def stack_work(self, work: Work) -> dict[str, Work]:
        patches = symbol("M", work.length.value // self.patch_size + 1)  # complete ones and the current one
        steps = work.rows / self.patch if work.phase == "decode" else work.rows
        answered = work.rows * patches if work.phase == "forward" else work.rows
        return {
            "global_model.": work._replace(rows=steps, length=patches),
            "local_model.": work._replace(rows=answered, length=self.patch, phase="forward"),
        }

    def flops(self, work: Work) -> Counts:
        local_tokens = self.stack_work(work)["local_model."].tokens
        return {"projection": 2 * local_tokens * self.byte_d * self.local_d} | super().flops(work)

    @property
    def decoding_stacks(self) -> list[StackCost]:
        return self.stacks[:1]  # the local model recomputes its patch for each byte

    @property
    def state_period(self) -> int:
        return self.patch_size * super().state_period

    @property
    def state_names(self) -> list[str]:
        return [*super().state_names, "open patch"]

    def state_parts(self, length: int, source: int) -> list[StatePart]:
        layers = self.decoding_stacks[0].state_parts(length // self.patch_size + 1)
        count = len(self.stacks[0].stack.layers)
        width = self.global_d.value
        return [*layers, StatePart("open patch", "patch", (count,), width, self.patch_size, width)]

    def state(self, length: int, source: int | None = None) -> tuple[int, int]:
        # the global model's state and newest output, and the bytes of the current patch
        return self.stacks[0].state(length // self.patch_size + 1) + self.global_d.value, self.patch_size

    def saved_activations(self, work: TrainingWork) -> int:
        projection = work.input_bytes(self.byte_d.value)
        return 3 * work.tokens * INT64 + projection + self.head.saved_activations(work)
