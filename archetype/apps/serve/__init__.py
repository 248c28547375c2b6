"""Models behind OpenAI's HTTP API: `archetype serve`."""
