"""Checkpoints in few bits: which stored tensors make one, and the numbers that they stand for.

A file each for the published methods; a method is one or several schemes, and `registry.py` knows all of them. Headers
are read without torch, which is imported where numbers are made.
"""
