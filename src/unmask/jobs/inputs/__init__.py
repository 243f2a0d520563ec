"""Files and names -> the parts of a job: corpora, labelled records, vocabularies, networks."""
