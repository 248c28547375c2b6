"""Training: turn a recipe and data into a run directory. Interrupted runs resume bit for bit."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the program configures logging
