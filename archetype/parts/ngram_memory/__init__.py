"""N-gram memory: values that a hash of the last tokens looks up in a table (Engram; Cheng 2026)."""
