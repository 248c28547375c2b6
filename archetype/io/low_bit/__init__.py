"""Quantized checkpoints: which stored tensors form a weight, and how to dequantize it.

There is one file per published method (`registry.py` lists them); a method has one or several schemes. Headers are read
without torch, which is imported for dequantization only.
"""
