"""General-purpose parts that know nothing about language: errors, settings, files, processes."""
