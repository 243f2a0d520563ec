"""Labelled data -> head -> answer -> score. A task is an objective that can also answer."""
