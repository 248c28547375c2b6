"""How fast a model runs on this machine, beside the machine's own limits and beside other libraries."""
