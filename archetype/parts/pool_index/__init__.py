"""Learned index of pools: each query attends to the pools of keys whose pooled key fits best (Qwen4-Exp, GLM-5.3)."""
