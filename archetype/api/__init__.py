"""The front door: the functions of `import archetype`, and models with their tokenizers, loaded, used and exported."""
