"""HTTP server with OpenAI's API: `archetype serve`."""
