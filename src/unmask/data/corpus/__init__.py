"""Documents -> a corpus on disk -> examples."""
