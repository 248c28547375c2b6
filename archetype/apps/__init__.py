"""User-facing programs: the command line, the server with its web UI, and benchmarks."""
