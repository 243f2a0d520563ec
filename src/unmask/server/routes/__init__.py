"""HTTP routes: those of OpenAI and text-embeddings-inference, and those of unmask itself."""
