"""Docstrings: prose out of source files, which are never run."""

from unmask.data.read import docstrings


def test_prose_is_read_and_code_is_left_out(tmp_path, monkeypatch):
    source = '''"""A module about cats, which is long enough to be taken as prose.

    >>> code = "is left out"

Another paragraph follows with ``markup`` and :class:`~a.b.Cat`, which is made plain text.
"""
raise SystemExit("this file was run")


def purr():
    """Make the sound that a cat makes when somebody is kind to it."""
'''
    (tmp_path / "cats.py").write_text(source)
    (tmp_path / "broken.py").write_text("def (:")
    monkeypatch.setattr(docstrings, "_files", lambda library: sorted(tmp_path.glob("*.py")))
    monkeypatch.setattr(docstrings, "SHORTEST", 10)
    (module,) = docstrings.read_library("python", 10_000)
    assert module.name == "cats"
    assert module.paragraphs == [
        "A module about cats, which is long enough to be taken as prose.",
        "Another paragraph follows with markup and a.b.Cat, which is made plain text.",
        "Make the sound that a cat makes when somebody is kind to it.",
    ]


def test_reading_stops_after_enough_characters():
    modules = list(docstrings.read_library("python", 5_000))
    characters = [module.characters for module in modules]
    assert sum(characters[:-1]) <= 5_000 < sum(characters)
