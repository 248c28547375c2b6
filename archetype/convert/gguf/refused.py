"""llama.cpp architectures that are neither read nor written, each with the reason."""

PICTURES = "not a text model"
DRAFTS = "a draft model for speculative decoding"

REFUSED: dict[str, str] = {
    "arctic": "a dense MLP and experts in parallel that read different vectors",
    "arwkv7": "the RWKV-7 recurrence in Qwen2's layers",
    "chameleon": "QK-norm with separate weights for each head; llama.cpp hides the logits of images",
    "clip": PICTURES,
    "cogvlm": "separate layer weights for image positions; the text model alone is not read",
    "dflash": DRAFTS,
    "eagle3": DRAFTS,
    "gemma3n": "AltUp and LAuReL are read from Hugging Face's files, but not from GGUF",
    "gemma4-assistant": DRAFTS,
    "gptj": "llama.cpp registers the name but cannot run it",
    "graniteswitch": "adapters that a prompt token selects",
    "grovemoe": "adjugate experts that a group of experts shares",
    "phimoe": "llama.cpp weights the experts by softmax; the model uses SparseMixer",
    "plamo2": "heads as in Mamba-2, with steps, B and C projected and normed as in Mamba",
    "pockettts": PICTURES,
    "qwen3tts": PICTURES,
    "rwkv6": "the RWKV-6 recurrence",
    "rwkv6qwen2": "the RWKV-6 recurrence in Qwen2's layers",
    "smallthinker": "experts selected by the layer's input, before attention and norm",
    "talkie": "normed token vectors, scaled in each layer, added to its output",
    "wavtokenizer-dec": PICTURES,
}
