"""What knows nothing about language: errors, settings, files, processes, the console."""
