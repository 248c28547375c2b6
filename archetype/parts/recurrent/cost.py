"""Cost of recurrent mixers (Elman 1990; Hochreiter 1997; Cho 2014)."""

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, MixerCost, cost_of
from archetype.cost.work import FLOAT32, TrainingWork, Work
from archetype.parts.recurrent import spec


@cost_of(spec.RNN)
class RNNCost(MixerCost[spec.RNN | spec.GRU | spec.LSTM]):
    """Cost of an RNN, which multiplies the input and the hidden state by the matrices of every gate at each step."""

    state_name = "recurrent state"
    complexity = Complexity("O(T D^2)", "O(D^2)", "O(D)")
    gates = 1
    state_vectors = 1
    saved_vectors = 1  # per step, in torch's CPU kernels

    def __init__(self, part: spec.RNN | spec.GRU | spec.LSTM, d: Formula) -> None:
        super().__init__(part, d)
        self.hidden, self.directions = (symbol("D_h", d.value // 2), 2) if part.bidirectional else (d, 1)

    def parameters(self) -> Counts:
        # two matrices and two biases per gate
        return {"cell": self.gates * self.directions * self.hidden * (self.d + self.hidden + 2)}

    def flops(self, work: Work) -> Counts:
        return {"cell": 2 * work.tokens * self.gates * self.directions * self.hidden * (self.d + self.hidden)}

    def state(self, length: int) -> int:
        return self.state_vectors * self.d.value

    def saved_activations(self, work: TrainingWork) -> int:
        return self.saved_steps(work, self.saved_vectors * self.d.value)


@cost_of(spec.GRU)
class GRUCost(RNNCost):
    """Cost of a GRU with reset, update and new gates."""

    gates = 3
    saved_vectors = 7


@cost_of(spec.LSTM)
class LSTMCost(RNNCost):
    """Cost of an LSTM with input, forget, cell and output gates. Its state is a hidden vector and a cell."""

    gates = 4
    state_vectors = 2

    def saved_activations(self, work: TrainingWork) -> int:
        # the input and oneDNN's workspace, half of which is always float32
        d = self.d.value
        return work.input_bytes(d) + work.tokens * d * (17 * (work.itemsize + FLOAT32) // 2)
