# %% exercise 1
def alibi_slopes(H):
    return [2 ** (-8 * (h + 1) / H) for h in range(H)]


# %% exercise 2
def longest_wavelength(P, theta):
    return 2 * math.pi * theta ** ((P - 2) / P)


# %% exercise 3
def rotate_interpolated(x, i, factor):
    return rotate(x, i / factor)
