"""Checkpoint -> answers: a loaded model, embeddings, hidden tokens, next sentences, attention."""
