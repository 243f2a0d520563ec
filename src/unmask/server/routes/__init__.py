"""Routes of OpenAI, of text-embeddings-inference, and of unmask."""
