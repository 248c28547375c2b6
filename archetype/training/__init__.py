"""From a recipe and data to a trained run directory, resumable to the bit."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the program configures logging
