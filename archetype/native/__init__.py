"""Native kernels for decoding on CPU: compiled at first use, recorded from the plain modules, replayed as one list."""
