"""Work on untrusted input in a process that can be killed: one module with a function `answer` per task."""
