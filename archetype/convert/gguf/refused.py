"""Architectures of llama.cpp that are not read: what each needs that no specification here says, or why not."""

PICTURES = "it is not a model of texts"
DRAFTS = "it drafts tokens for another model"

REFUSED: dict[str, str] = {
    "arctic": "experts beside the network that read another vector than it",
    "arwkv7": "the recurrence of RWKV-7 with the layers of Qwen2",
    "chameleon": "norms of queries and keys with other weights for each head",
    "clip": PICTURES,
    "cogvlm": "layers with other weights for the places of a picture, whose text alone is not read",
    "dflash": DRAFTS,
    "dots3note": "latent attention with windows, beside one of other widths without",
    "eagle3": DRAFTS,
    "gemma3n": "streams, one of which is updated at a time (AltUp)",
    "gemma4-assistant": DRAFTS,
    "gptj": "llama.cpp knows its name and does not compute it",
    "graniteswitch": "adapters that a token of the prompt chooses",
    "grovemoe": "experts that groups of experts share",
    "hrm_text": "it is read from Hugging Face's files, and its tensors in GGUF are not known yet",
    "phimoe": "llama.cpp weighs the experts by a softmax, where the model uses SparseMixer",
    "plamo2": "a Mamba with norms of its own beside attention",
    "pockettts": PICTURES,
    "qwen3tts": PICTURES,
    "rwkv6": "the recurrence of RWKV-6",
    "rwkv6qwen2": "the recurrence of RWKV-6 with the layers of Qwen2",
    "smallthinker": "experts that are chosen before attention",
    "talkie": "the first vectors added to the output of each layer",
    "wavtokenizer-dec": PICTURES,
}
