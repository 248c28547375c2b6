"""What people run: the command line, the server with its web UI, and the measurement of speed."""
