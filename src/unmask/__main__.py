"""Entry point of `python -m unmask`, which is the same as `unmask`."""

from unmask.cli import main

main()
