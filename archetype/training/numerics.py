"""Version number of the code that determines the losses of a training run."""

# Raised by hand, together with the golden losses (tests/convergence/test_golden_losses.py), when a change is meant to
# give other losses: studies then train again instead of using stored runs. Not raised by a change that only renames,
# moves or shortens code.
NUMERICS = 2
