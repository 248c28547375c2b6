"""Positions: learned, sinusoidal, rotary, ALiBi, relative biases (Vaswani 2017; Raffel 2019; Su 2021; Press 2021)."""
