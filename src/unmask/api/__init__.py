"""The functions of `import unmask`: each calls the same jobs as the command line, silently.

Their modules import torch and the rest of the package inside functions, so that `import unmask` is
fast and works where torch is not installed.
"""
