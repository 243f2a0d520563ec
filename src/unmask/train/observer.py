"""A callback of a user's own, which is given each entry of a run's metrics, to read."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from unmask.system.errors import in_one_line


class Observer:
    """Calls it with a copy of each entry. One that fails is not called again; the run goes on."""

    def __init__(
        self, name: str, callback: Callable[[Mapping[str, Any]], object], say: Callable[[str], None]
    ) -> None:
        self.name, self.callback, self.say = name, callback, say
        self.failed = False

    def __call__(self, entry: dict[str, Any]) -> None:
        """Show one entry."""
        if self.failed:
            return
        try:
            self.callback(MappingProxyType(deepcopy(entry)))
        except Exception as error:
            self.failed = True
            self.say(
                f"warning: callback '{self.name}' failed and is not called again: "
                f"{in_one_line(error)}"
            )
