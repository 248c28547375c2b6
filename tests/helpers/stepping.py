"""Runner of programs with a state. It reads a folder that `archetype export --with-state` wrote, without Archetype."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]


class Stepper:
    """The program of a folder, and states for it."""

    def __init__(self, folder: Path) -> None:
        self.signature = json.loads((folder / "signature.json").read_text())
        file = folder / self.signature["file"]
        self.call: Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
        if file.suffix == ".onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
            self.names = [one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()]
            self.call = lambda *inputs: self._onnx(session, *inputs)
        else:
            module = torch.export.load(file).module()
            self.call = lambda tokens, num_tokens, state: module(tokens=tokens, num_tokens=num_tokens, state=state)

    def first(self, batch: int, room: int) -> State:
        """The state of sequences before their first token, with slots for so many tokens."""
        slots = self.signature["slots"].items()
        sizes = {"batch": batch} | {name: room // one["tokens_per_slot"] + one["first"] for name, one in slots}
        state = {}
        for entry in self.signature["state"]:
            dtype = getattr(torch, entry["type"])
            tensor = torch.zeros([sizes.get(size, size) for size in entry["shape"]], dtype=dtype)
            initial = torch.tensor(entry["initial"], dtype=dtype)
            tensor[(slice(None), *(slice(size) for size in initial.shape[1:]))] = initial
            state[entry["name"]] = tensor
        return state

    @torch.no_grad()
    def step(self, tokens: Tensor, state: State, num_tokens: Tensor | None = None) -> tuple[Tensor, State]:
        """The outputs at each new token, and the next state."""
        counts = torch.full((len(tokens),), tokens.shape[1]) if num_tokens is None else num_tokens
        logits, after = self.call(tokens, counts, state)
        assert list(after) == list(state)
        return logits, after

    def greedy(self, prompt: Tensor, count: int, chunk: int) -> list[int]:
        """The most likely tokens after a prompt (1, T) that is read in chunks."""
        state, chosen = self.first(1, prompt.shape[1] + count), []
        for part in prompt.split(chunk, 1):
            logits, state = self.step(part, state)
        for _ in range(count):
            token = logits[:, -1:].argmax(-1)
            chosen.append(int(token))
            logits, state = self.step(token, state)
        return chosen

    def _onnx(self, session: Any, tokens: Tensor, num_tokens: Tensor, state: State) -> tuple[Tensor, State]:
        entries = self.signature["state"]
        inputs = {"tokens": tokens, "num_tokens": num_tokens} | {one["input"]: state[one["name"]] for one in entries}
        arrays = session.run(None, {name: np.asarray(tensor) for name, tensor in inputs.items()})
        logits, *after = map(torch.from_numpy, arrays)
        assert self.names[1][1:] == [one["output"] for one in entries]
        return logits, dict(zip(state, after, strict=True))
