# %% [markdown]
# # 11. A picture is a text of patches
#
# **Question.** How does a Transformer read a picture, and what does it know about space?
#
# You cut pictures into patches, compute the first layer by hand and as a convolution, train a small Vision
# Transformer on drawn discs, and look at what it learned about positions.
# %% [markdown]
# ## Pictures
#
# Nothing is downloaded: each picture has two discs and some noise. The class is the arrangement of the discs: side
# by side, one above the other, or along one of the two diagonals. A single patch does not reveal it.
# %%
import archetype

SIZE, PATCH, D = 24, 4, 48
CLASSES = ("beside", "above", "falling", "rising")
OFFSETS = torch.tensor([[0.0, 5.0], [5.0, 0.0], [3.5, 3.5], [-3.5, 3.5]])  # of one disc from the center


def pictures(count):
    """Pictures (count, 1, SIZE, SIZE) and their classes."""
    classes = torch.randint(4, (count,))
    pixels = torch.stack(torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij"), dim=-1)
    middle = torch.randint(8, SIZE - 8, (count, 1, 1, 2))
    drawn = torch.zeros(count, SIZE, SIZE)
    for sign in (1, -1):
        center = middle + sign * OFFSETS[classes][:, None, None]
        drawn += (pixels - center).norm(dim=-1) <= 3
    return (drawn + 0.15 * torch.randn(count, SIZE, SIZE))[:, None], classes


images, classes = pictures(200)
figure, axes = plt.subplots(1, 4, figsize=(6, 1.7))
for index, axis in enumerate(axes):
    axis.imshow(images[(classes == index).nonzero()[0], 0][0], cmap="gray")
    axis.set(title=CLASSES[index], xticks=range(0, SIZE, PATCH), yticks=range(0, SIZE, PATCH))
    axis.set(xticklabels=[], yticklabels=[])
    axis.grid(alpha=0.4)
figure.tight_layout()
# %% [markdown]
# ## Predict
#
# ViT-B/16 reads pictures of 224 x 224 pixels in patches of 16 x 16, plus one class token. How many tokens does a
# picture have? And with patches of 8 x 8?
# %%
prediction = None
# %%
reveal(prediction, (224 // 16) ** 2 + 1)
spec = archetype.load_spec("vit-b-16")
assert spec.context_length == 197
for patch in (16, 8):
    report = archetype.cost_report(spec.replace(patch_size=patch))
    print(f"patches of {patch:2}: {report.length:4} tokens, {report.flops['forward'] / 1e9:6.1f} GFLOPs a picture")
# %% [markdown]
# Four times as many tokens take four times the matrix products and sixteen times the pairs.
#
# ## Patches by hand
#
# A patch is flattened into a row of pixels, and one matrix maps it to a vector. This is the same as a convolution
# whose stride equals its kernel size.
# %%
block = {
    "wiring": {"kind": "pre_norm", "norm": "layer"},
    "mixer": {"kind": "attention", "num_heads": 4, "bias": True},
    "feedforward": {"kind": "mlp", "d_ff": 96, "activation": "gelu", "bias": True},
}
vit_spec = {
    "kind": "vision_encoder", "image_size": SIZE, "patch_size": PATCH, "num_channels": 1, "d_model": D,
    "layers": [block] * 2, "final_norm": "layer", "head": {"kind": "classification", "num_classes": 4},
    "initialization": {"kind": "normal", "std": 0.1},
}  # fmt: skip
vit = archetype.build(vit_spec)
embedding = vit.embedding
with torch.no_grad():
    vectors = []
    for row in range(0, SIZE, PATCH):
        for column in range(0, SIZE, PATCH):
            pixels = images[0, :, row : row + PATCH, column : column + PATCH].flatten()
            vectors.append(embedding.patch.weight @ pixels + embedding.patch.bias)
    by_hand = torch.stack([embedding.class_token, *vectors]) + embedding.position.weight
    torch.testing.assert_close(by_hand, embedding(images[:1])[0])
    kernel = embedding.patch.weight.view(D, 1, PATCH, PATCH)
    convolved = torch.nn.functional.conv2d(images[:1], kernel, embedding.patch.bias, stride=PATCH)
    torch.testing.assert_close(convolved[0].flatten(1).T, torch.stack(vectors))
print("patches by hand, as a convolution and in Archetype: equal")
# %% [markdown]
# ## Space is learned
#
# Apart from its position vectors, nothing tells the model which patches are neighbors. Without them, a picture
# whose patches are shuffled is the same picture.
# %%


def shuffled(images, order):
    """Return pictures with their patches in another order."""
    cut = torch.nn.functional.unfold(images, PATCH, stride=PATCH)
    return torch.nn.functional.fold(cut[:, :, order], (SIZE, SIZE), PATCH, stride=PATCH)


order = torch.randperm((SIZE // PATCH) ** 2)
blind = archetype.build(vit_spec | {"embedding": {"position": "none"}})
with torch.no_grad():
    torch.testing.assert_close(blind(images).logits, blind(shuffled(images, order)).logits, rtol=1e-4, atol=1e-5)
    difference = (vit(images).logits - vit(shuffled(images, order)).logits).abs().max()
print(f"without positions: equal logits; with them they differ by {difference:.3f}")
# %% [markdown]
# ## Training
# %%
torch.manual_seed(0)


def loss():
    images, classes = pictures(32)
    return torch.nn.functional.cross_entropy(vit(images).logits, classes)


losses = fit(loss, vit.parameters(), 300, rate=3e-3)
test_images, test_classes = pictures(500)
with torch.no_grad():
    right = (vit(test_images).logits.argmax(-1) == test_classes).double().mean().item()
    right_shuffled = (vit(shuffled(test_images, order)).logits.argmax(-1) == test_classes).double().mean().item()
print(f"{right:.1%} correct on new pictures, {right_shuffled:.1%} with shuffled patches (a guess: 25%)")
# %% [markdown]
# Where does the class token look?
# %%
lm = archetype.LanguageModel(vit.spec, vit.eval())
figure, axes = plt.subplots(2, 4, figsize=(6, 3.2))
for index in range(4):
    image = test_images[(test_classes == index).nonzero()[0, 0]]
    heads = [lm.inspect(image).attention(layer=1, head=head).tensors()["weights"] for head in range(4)]
    looked = torch.stack(heads).mean(0)[0, 1:].view(SIZE // PATCH, -1)  # the row of the class token
    axes[0, index].imshow(image[0], cmap="gray")
    axes[1, index].imshow(looked, cmap="viridis")
    for axis in axes[:, index]:
        axis.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("picture")
axes[1, 0].set_ylabel("attention")
figure.tight_layout()


# %% [markdown]
# ## What you have seen
#
# * $T = (S / J)^2 + 1$ tokens for a picture of side $S$ in patches of side $J$; $J^2 C$ numbers each become $D$.
# * The patch layer is a convolution with kernel size and stride $J$. Everything else is an encoder.
# * A convolution has locality built in. A ViT has to learn it in its position vectors, which takes data.
# %% [markdown]
# ## Exercises
#
# **1.** How many tokens does a video of `frames` pictures of side `S` have, if it is cut into blocks of
# `J` x `J` pixels over `t` frames, without a class token?
# %% exercise 1
def video_tokens(frames, S, J, t):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 1
with exercise(1):
    assert video_tokens(32, 224, 16, 2) == 3136
    assert video_tokens(1, 224, 16, 1) == archetype.load_spec("vit-b-16").context_length - 1


# %% [markdown]
# **2.** Cut pictures (B, C, S, S) into rows of patches (B, T, C J J) without loops, patches row by row; within a
# patch by channel, row and column.
# %% exercise 2
def cut(images, J):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 2
with exercise(2):
    colour = torch.randn(2, 3, 12, 12)
    expected = torch.nn.functional.unfold(colour, 4, stride=4).transpose(1, 2)
    torch.testing.assert_close(cut(colour, 4), expected)


# %% [markdown]
# **3.** Here the class is predicted from the class token. Another way is the mean of all patches. Change the
# specification `vit_spec` so that it has no class token, and return it.
# %% exercise 3
def without_class_token(spec):
    raise NotImplementedError("Write your answer in the cell above.")


# %% check 3
with exercise(3):
    other = archetype.build(without_class_token(vit_spec))
    with torch.no_grad():
        output = other(images)
        torch.testing.assert_close(other.classifier(output.hidden.mean(1)), output.logits)
