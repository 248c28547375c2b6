"""Drawing of recurrent mixers: one step, whose result the next step reads."""

from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(RNN)
def rnn(part: RNN, modules: frozenset[str]) -> Inside:
    """Draw one step (Elman 1990)."""
    cells = (
        Cell("cell", 0, 0, (X,), 3, "W x + U h"),
        operation("h", 0, 1, ("cell",), 3, f"h′ = {part.activation}(·)"),
    )
    return Inside(cells, "h", loops=(("h", "cell"),))


@inside_of(GRU)
def gru(part: GRU, modules: frozenset[str]) -> Inside:
    """Draw reset and update gates (Cho 2014)."""
    cells = (
        Cell("cell", 0, 0, (X,), 3, "W x, U h"),
        operation("r", 0, 1, ("cell",), 1, "σ  reset r", gives="reset"),
        operation("z", 2, 1, ("cell",), 1, "σ  update z", gives="update"),
        operation("n", 0, 2, ("r", "cell@1"), 2, "n = tanh(W x + r · U h)"),
        operation("h", 0, 3, ("n", "z"), 3, "h′ = (1 − z) · n + z · h"),
    )
    return Inside(cells, "h", loops=(("h", "cell"),))


@inside_of(LSTM)
def lstm(part: LSTM, modules: frozenset[str]) -> Inside:
    """Draw the gates of a memory cell (Hochreiter 1997; Gers 2000)."""
    gates = (
        ("i", "σ  input i", "input"),
        ("f", "σ  forget f", "forget"),
        ("g", "tanh  g", ""),
        ("o", "σ  output o", "output"),
    )
    cells = [Cell("cell", 0, 0, (X,), 3, "W x + U h")]
    cells += [
        operation(name, 0.75 * index, 1, ("cell",), 0.75, label, gives=gives)
        for index, (name, label, gives) in enumerate(gates)
    ]
    cells += [
        operation("c", 0, 2, ("i", "f", "g"), 2.25, "c′ = f · c + i · g"),
        operation("h", 0, 3, ("c", "o"), 3, "h′ = o · tanh(c′)"),
    ]
    return Inside(tuple(cells), "h", loops=(("h", "cell"),))
