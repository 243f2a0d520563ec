"""The size of the package: what counts as a line of code, and whose line it is."""

from benchmarks.codelines import code_lines, lines_by_package, package_of, read_report

TEXT = '''"""A file.

With two paragraphs.
"""

import os  # code, with a comment

# a comment
NAME = """not
a docstring"""


class Thing:
    """A thing."""

    async def act(self):
        """Act."""
        "a string that is no docstring"
'''


def test_blank_lines_comments_and_docstrings_are_no_code():
    assert code_lines(TEXT) == 6


def test_every_module_belongs_to_its_subpackage_or_to_the_package():
    assert package_of("unmask.train.loop") == package_of("unmask.train") == "unmask.train"
    assert package_of("unmask.errors") == package_of("unmask") == "unmask"


def test_the_total_is_the_sum():
    counts = lines_by_package()
    total = counts.pop("total")
    assert total == sum(counts.values())
    assert counts["unmask.text"] > 100


def test_mypys_table_is_added_up_by_subpackage():
    table = """
                Name   Anys   Exprs   Coverage
    ------------------------------------------
       unmask.errors      1      10     90.00%
    unmask.text.learn     2      30     93.33%
    unmask.text.count     0      20    100.00%
    ------------------------------------------
               Total      3      60     95.00%
    """
    assert read_report(table) == {
        "unmask": {"any": 1, "expressions": 10},
        "unmask.text": {"any": 2, "expressions": 50},
        "total": {"any": 3, "expressions": 60},
    }
