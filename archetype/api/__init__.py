"""Public Python interface: the functions that `import archetype` provides, and models with their tokenizers."""
