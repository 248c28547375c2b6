"""Quantized checkpoints: the stored tensors that form each weight, and how to dequantize them.

Each published method has a file (`registry.py` lists them) with one or several schemes. Headers are read without
torch, which is imported only for dequantization.
"""
