# %% [markdown]
# # 10. Encoders and pairs
#
# **Question.** What can a model do with both sides of a gap, and how does one text become another?
#
# You train the same layers with and without access to what follows, compute cross-attention by hand, and let an
# encoder-decoder reverse texts: its attention shows that it learned to read backwards.
# %% [markdown]
# ## Predict
#
# In a made-up language the tokens at even positions are drawn at random from 0 to 11, and each token at an odd
# position is the *larger* of its two neighbors. One token at an odd position is hidden. A model that sees both sides
# can always predict it. How often can a model that sees only the left side predict it? (What is its best guess?)
# %%
prediction = None
# %%
import archetype

V, T, D = 12, 13, 32
MASK = V  # an extra token that replaces a hidden one
INITIAL = {"kind": "normal", "std": 0.1}  # larger than usual, because the models are narrow


def texts(count):
    tokens = torch.randint(V, (count, T))
    tokens[:, 1::2] = torch.maximum(tokens[:, :-2:2], tokens[:, 2::2])
    return tokens


def stack(kind):
    block = {
        "wiring": {"kind": "pre_norm", "norm": "layer"},
        "mixer": {"kind": "attention", "num_heads": 4, "bias": True},
        "feedforward": {"kind": "mlp", "d_ff": 128, "activation": "gelu", "bias": True},
    }
    sizes = {"vocab_size": V + 1, "context_length": 32, "d_model": D, "embedding": {"position": "learned"}}
    return {"kind": kind, **sizes, "layers": [block] * 2, "final_norm": "layer", "initialization": INITIAL}


def hide(tokens):
    """Hide one token at an odd position of each sequence; return the sequences and these positions."""
    positions = 2 * torch.randint(T // 2, (len(tokens),)) + 1
    hidden = tokens.clone()
    hidden[torch.arange(len(tokens)), positions] = MASK
    return hidden, positions


def accuracy(kind):
    torch.manual_seed(0)
    model = archetype.build(stack(kind))

    def logits_of(tokens):
        hidden, positions = hide(tokens)
        each = torch.arange(len(tokens))
        return model(hidden).logits[each, positions], tokens[each, positions]

    fit(lambda: torch.nn.functional.cross_entropy(*logits_of(texts(32))), model.parameters(), 300, rate=5e-3)
    with torch.no_grad():
        logits, right = logits_of(texts(1000))
    return (logits.argmax(-1) == right).double().mean().item()


both, left = accuracy("encoder"), accuracy("decoder")
best = sum(a + 1 for a in range(V)) / V**2  # the guess is the left neighbor a, right if the other is <= a
reveal(prediction, best)
print(f"trained: {left:.1%} with only the left side, {both:.1%} with both")
# %% [markdown]
# The two models differ in one word of their specification, `encoder` or `decoder`, which chooses the mask. An
# encoder is trained by hiding tokens (BERT hides 15 %); it cannot generate text, because it has only seen complete
# texts. A decoder is trained on every token at once, and can generate.
#
# ## Padding
#
# The texts of a batch have different lengths and are padded. An encoder would see the padding, so the mask must
# hide it: a text then gives the same vectors in a batch as alone.
# %%
encoder = archetype.build(stack("encoder"))
batch, lengths = texts(3), torch.tensor([13, 5, 8])
with torch.no_grad():
    together = encoder(batch, num_tokens=lengths).hidden
    for row, length in enumerate(lengths):
        alone = encoder(batch[row : row + 1, :length]).hidden[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=1e-4, atol=1e-5)
print("padded and alone: equal vectors")
# %% [markdown]
# ## Cross-attention by hand
#
# An encoder-decoder has two stacks. In each layer of the second, queries come from the target, and keys and values
# come from the encoder's output for the source. There is no causal mask, because the whole source is known.
# %%
layer = stack("decoder")["layers"][0]
crossing = layer | {"cross_attention": {"kind": "attention", "num_heads": 4}}
sides = {
    "encoder": {"layers": [layer], "final_norm": "layer"},
    "decoder": {"layers": [crossing], "final_norm": "layer"},
}
pair_spec = {
    "kind": "encoder_decoder", "vocab_size": V + 1, "context_length": 32, "d_model": D,
    "embedding": {"position": "learned"}, **sides,
}  # fmt: skip
pair = archetype.build(pair_spec)
source, target = texts(1), texts(1)[:, :6]
lm = archetype.LanguageModel(pair.spec, pair)
trace = lm.trace(source[0], target=target).run()
cross = pair.decoder.blocks[0].cross
with torch.no_grad():
    encoded = trace["encoder.final_norm.out"][0]  # (13, D)
    x = trace["decoder.blocks.0.cross.in"][0]  # (6, D)
    q = cross.q(x).unflatten(-1, (4, -1)).transpose(0, 1)  # (H, 6, P)
    k, v = (linear(encoded).unflatten(-1, (4, -1)).transpose(0, 1) for linear in (cross.k, cross.v))
    weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)  # (H, 6, 13)
    by_hand = cross.o((weights @ v).transpose(0, 1).flatten(1))
torch.testing.assert_close(by_hand, trace["decoder.blocks.0.cross.out"][0])
print("cross-attention by hand equals the layer's output")
# %% [markdown]
# ## Reversing texts
#
# The encoder-decoder now learns to write its source backwards. Where does it look?
# %%
START, N = MASK, 7


def reversal(count):
    source = torch.randint(V, (count, N))
    target = source.flip(1)
    start = torch.full((count, 1), START)
    return source, torch.cat((start, target[:, :-1]), dim=1), target


torch.manual_seed(0)
pair = archetype.build(pair_spec | {"initialization": INITIAL})


def loss():
    source, given, target = reversal(32)
    logits = pair(given, source=source).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


fit(loss, pair.parameters(), 300, rate=5e-3)
source, given, target = reversal(200)
with torch.no_grad():
    right = (pair(given, source=source).logits.argmax(-1) == target).double().mean()
print(f"{right:.1%} of the reversed tokens are correct")

lm = archetype.LanguageModel(pair.spec, pair.eval())
maps = lm.inspect(source[0], target=given[:1])
weights = torch.stack([maps.attention("decoder.blocks.0.cross", head).tensors()["weights"] for head in range(4)])
figure, axes = plt.subplots(1, 4, figsize=(7, 2))
for head, axis in enumerate(axes):
    axis.imshow(weights[head], cmap="viridis", vmin=0, vmax=1)
    axis.set(title=f"head {head}", xticks=[], yticks=[])
    axis.set_xlabel("source")
axes[0].set_ylabel("target")
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# * Encoder, decoder and encoder-decoder use the same layers with different masks: all pairs; $j \le i$; and pairs
#   between two texts.
# * Both sides of a gap can be necessary, and a causal model cannot use the right one.
# * $\operatorname{Cross}(Y, X) = \operatorname{softmax}\left((Y W_q)(X W_k)^\top / \sqrt P\right) X W_v$, with $X$
#   the encoder's output: computed once per source, and kept while the target is generated.
# %% [markdown]
# ## Exercises
#
# **1.** BERT selects 15 % of the tokens: 80 % of these become the mask, 10 % become another token, and 10 % stay.
# In a text of `n` tokens, how many does the model read *changed*, on average? (The other token always differs.)
# %% exercise 1
def expected_changes(n):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    assert abs(expected_changes(100) - 13.5) < 1e-9


# %% [markdown]
# **2.** Write the mask (True where a position may be seen) of a *prefix* language model: the first `prefix` tokens
# see each other in both directions, the rest is causal.
# %% exercise 2
def prefix_mask(T, prefix):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    mask = prefix_mask(6, 3)
    assert mask[0, 2] and not mask[0, 3] and mask[5, 0] and not mask[3, 4] and mask[4, 4]
    assert torch.equal(prefix_mask(6, 0), torch.ones(6, 6, dtype=torch.bool).tril())


# %% [markdown]
# **3.** While an encoder-decoder generates a target of `T` tokens from a source of `S` tokens, how many numbers
# does one decoder layer keep? Count the keys and values of `H` heads of `P` features for both kinds of attention.
# (Archetype also keeps the length of the source.)
# %% exercise 3
def pair_state(T, S, H, P):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    for T_, S in ((10, 20), (32, 5)):
        counted = archetype.cost_report(pair_spec, length=T_, source_length=S, dtype="float32").state["bytes"]
        assert 4 * pair_state(T_, S, 4, D // 4) + 8 == counted
