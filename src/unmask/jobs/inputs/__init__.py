"""What jobs are made of: corpora, labelled records, vocabularies, networks."""
