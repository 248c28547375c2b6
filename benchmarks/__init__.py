"""Speed and memory, measured: each script prints its own table, with the peer beside it in the same run."""
