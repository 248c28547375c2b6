"""The command line: one file for each group of verbs. Modules import nothing heavy before a verb runs."""

import os

# a search for installed plugins that specifications do not use; it takes as long as a whole verb may
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
