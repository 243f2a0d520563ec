"""HTTP server for models: request -> guard -> route -> batcher -> model -> JSON response."""
