"""README of a program's folder: what the program computes, and code that runs it."""

from archetype import __version__
from archetype.convert.program.formats import FILES, SIGNATURE, ProgramFormat
from archetype.convert.program.trace import Inputs, output_name
from archetype.models.spec import ModelSpec

PASSES: dict[ProgramFormat, str] = {
    "torch-export": """import torch

program = torch.export.load("model.pt2").module()
{output} = program({torch})""",
    "onnx": """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
({output},) = session.run(None, {{{numpy}}})""",
}
STEPS: dict[ProgramFormat, str] = {
    "torch-export": """import json
import torch

program = torch.export.load("model.pt2").module()
with open("signature.json") as file:
    signature = json.load(file)


def first_state(batch, room):
    # the state of `batch` sequences before their first token, with room for `room` tokens
    sizes = {name: room // slots["tokens_per_slot"] + slots["first"] for name, slots in signature["slots"].items()}
    sizes["batch"], state = batch, {}
    for entry in signature["state"]:
        shape, dtype = [sizes.get(size, size) for size in entry["shape"]], getattr(torch, entry["type"])
        values, initial = torch.zeros(shape, dtype=dtype), torch.tensor(entry["initial"], dtype=dtype)
        values[(slice(None), *map(slice, initial.shape[1:]))] = initial
        state[entry["name"]] = values
    return state


@torch.no_grad()  # otherwise recurrences are traced in every call
def greedy(prompt, count):
    tokens, chosen, state = torch.tensor([prompt]), [], first_state(1, len(prompt) + count)
    for _ in range(count):
        {output}, state = program(tokens=tokens, num_tokens=torch.tensor([tokens.shape[1]]), state=state)
        tokens = {output}[:, -1:].argmax(-1)
        chosen.append(int(tokens))
    return chosen""",
    "onnx": """import json
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
with open("signature.json") as file:
    signature = json.load(file)


def first_state(batch, room):
    # the state of `batch` sequences before their first token, with room for `room` tokens
    sizes = {name: room // slots["tokens_per_slot"] + slots["first"] for name, slots in signature["slots"].items()}
    sizes["batch"], state = batch, {}
    for entry in signature["state"]:
        shape, initial = [sizes.get(size, size) for size in entry["shape"]], np.array(entry["initial"], entry["type"])
        values = np.zeros(shape, entry["type"])
        values[(slice(None), *map(slice, initial.shape[1:]))] = initial
        state[entry["input"]] = values
    return state


def greedy(prompt, count):
    tokens, chosen, state = np.array([prompt]), [], first_state(1, len(prompt) + count)
    for _ in range(count):
        {output}, *after = session.run(None, {"tokens": tokens, "num_tokens": np.array([tokens.shape[1]]), **state})
        state = dict(zip(state, after))
        tokens = {output}[:, -1:].argmax(-1)
        chosen.append(int(tokens[0, 0]))
    return chosen""",
}


def pass_readme(spec: ModelSpec, format: ProgramFormat, inputs: Inputs) -> str:
    """Return the README of a program without a state."""
    names = {"torch": ", ".join(f"{name}={name}" for name in inputs)}
    names["numpy"] = ", ".join(f'"{name}": {name}' for name in inputs)
    padded = " `num_tokens` counts the tokens of each sequence; outputs at its padding are undefined."
    use = PASSES[format].format(output=output_name(spec), **names)
    return f"""# {spec.name or spec.kind}

A forward pass as a program of {format}, for any batch size and any length. `{SIGNATURE}` lists the names, shapes
and types of its inputs and outputs.{padded if "num_tokens" in inputs else ""} Written by Archetype {__version__}.

```python
# your inputs: {", ".join(inputs)}
{use}
```
"""


def step_readme(spec: ModelSpec, format: ProgramFormat) -> str:
    """Return the README of a program with a state."""
    use, output = STEPS[format].replace("{output}", output_name(spec)), output_name(spec)
    reread = "".join(
        f" A sequence that grows beyond {length:,} tokens must be read again, since its positions change."
        for length in sorted(spec.rereads_past)
    )
    return f"""# {spec.name or spec.kind}

A step as a program of {format} ({FILES[format]}): it reads new tokens after a state, and returns {output} at each of
them and the next state. Batch size and number of tokens are free: a prompt is read in one step, or in several.
`num_tokens` counts the new tokens of each sequence, at least 0; outputs at the padding behind them are undefined.

`{SIGNATURE}` lists the names, shapes and types of inputs and outputs. For each tensor of the state, `size` is

- `constant`;
- `ring`: slots of the dimension `axis` that later tokens overwrite;
- `grows`: slots of the dimension `axis`, allocated by the caller for all tokens to come, and extended with zeros
  between steps if needed (`slots`: one for every `tokens_per_slot` tokens, and `first`); or
- `context`: slots for the whole context.

`initial` is the value before the first token: one number, or the values of one sequence, whose further slots are zero.
Nothing checks that there are enough slots: tokens without a slot are lost.{reread} Written by Archetype {__version__}.

```python
{use}


print(greedy([1, 2, 3], 20))  # ids of a prompt
```
"""
