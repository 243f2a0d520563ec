"""Hidden states of a source -> generated tokens: decoders, key/value caches and beam search."""
