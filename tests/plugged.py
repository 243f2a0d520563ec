"""A built-in objective or task replaced by a copy of its file, loaded as a plugin.

Set UNMASK_AS_PLUGIN to a module, such as unmask.tasks.classify: the tests that import it get the
copy, and the table of built-in names no longer has it.
"""

import os
import sys
import tempfile
from pathlib import Path

AS_PLUGIN = "UNMASK_AS_PLUGIN"


def plug(module: str) -> None:
    """Load a copy of a built-in module; call it before anything imports the module."""
    from unmask.objectives import OBJECTIVES
    from unmask.system.plugins import load_plugin
    from unmask.tasks import TASKS

    assert module not in sys.modules
    kind, table = ("task", TASKS) if ".tasks." in module else ("objective", OBJECTIVES)
    name = next(own for own, spec in table.items() if spec.startswith(f"{module}:"))
    class_name = table.pop(name).partition(":")[2]
    source = Path(__file__).parents[1] / "src" / Path(*module.split(".")).with_suffix(".py")
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / f"a_copy_of_{name}.py"
        more = f'\n\nimport unmask\n\nunmask.register("{kind}", "{name}", {class_name})\n'
        copy.write_text(source.read_text() + more)
        load_plugin(copy)
    sys.modules[module] = sys.modules[f"unmask_plugin_{copy.stem}"]


if AS_PLUGIN in os.environ:
    plug(os.environ[AS_PLUGIN])
