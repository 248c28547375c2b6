"""Public Python interface: the functions of `import archetype`, and models with their tokenizers."""
