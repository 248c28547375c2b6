"""Mamba-3: a state space with trapezoidal steps, rotating states and several inputs and outputs (Lahoti 2026)."""
