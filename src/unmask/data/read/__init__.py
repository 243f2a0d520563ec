"""Files -> lines, texts and documents."""
