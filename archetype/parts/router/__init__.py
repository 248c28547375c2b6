"""Routers of mixtures of experts (Shazeer 2017; Roller 2021; DeepSeek-AI 2024b)."""
