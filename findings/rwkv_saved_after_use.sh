#!/usr/bin/env bash
# One expects a forward pass without gradients to leave a model's weights as they are, and a saved model to give its logits.
# RWKV: before the first pass in evaluation mode, the class divides output matrices of all layers from `rescale_every` on by
# powers of 2, in place, and halves the stream every `rescale_every` layers. `state_dict` and `save_pretrained` then hold the
# divided matrices; the model read back divides them again, and gives other logits. Even before that, logits in evaluation
# and training mode differ by more than rounding, for LayerNorm adds its epsilon to the variance of a halved stream.
# transformers 5.24.0; RwkvModel._rescale_layers.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$place/env/bin/python" -W ignore - "$place/model" <<'PY'
import sys

import torch
import transformers
from transformers import RwkvConfig, RwkvForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__)
torch.manual_seed(0)
sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "context_length": 32}
model = RwkvForCausalLM(RwkvConfig(**sizes, rescale_every=2)).eval()
for tensor in model.parameters():
    torch.nn.init.normal_(tensor, std=0.3)
before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
tokens = torch.arange(12)[None]
with torch.no_grad():
    logits = model(tokens, use_cache=False).logits
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
    model.save_pretrained(sys.argv[1])
    again = RwkvForCausalLM.from_pretrained(sys.argv[1]).eval()(tokens, use_cache=False).logits
    trained = model.train()(tokens, use_cache=False).logits
print("changed by a pass in evaluation mode:", *changed)
saved, mode = (float((other - logits).abs().max() / logits.abs().max()) for other in (again, trained))
print(f"saved and read back: logits differ by {saved:.1e} of the largest; in training mode by {mode:.1e}")
assert len(changed) == 4 and saved > 1e-2 and 1e-5 < mode < 1e-2, "no longer as recorded"
PY
