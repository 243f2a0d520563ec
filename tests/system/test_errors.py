"""Messages that help."""

from unmask.system.errors import unknown_name


def test_the_nearest_name_is_offered_and_all_are_listed():
    message = unknown_name("size", "bse", ["base", "large"])
    assert message == "unknown size 'bse'; did you mean 'base'? The sizes are base, large."


def test_nothing_is_offered_when_nothing_is_near():
    assert "there is none of that name" in unknown_name("size", "xyz", ["base", "large"])
