# %% exercise 1
def mixed_perplexity(p2, p3, w):
    return math.exp(-(w * p3 + (1 - w) * p2).log().mean())


# %% exercise 2
def unseen_share(n):
    seen = {tuple(train[i : i + n].tolist()) for i in range(len(train) - n + 1)}
    new = [tuple(test[i : i + n].tolist()) for i in range(len(test) - n + 1)]
    return sum(gram not in seen for gram in new) / len(new)


# %% exercise 3
def bengio_parameters(V, n, D, F):
    return V * D + (n * D * F + F) + (F * V + V)
