"""Tables and annotated text -> labelled records."""
