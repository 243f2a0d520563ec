"""Run many command lines in one process, without some packages; print what each led to.

python tests/cli/in_one_process.py '{"COMMAND": [words, hidden packages], ...}'
"""

import json
import sys

from unmask import cli


def main() -> None:
    """Print {command: [exit code, what was printed as an error]}; a code of None is a crash."""
    lines: list[str] = []
    cli.terminal.error = lines.append
    results = {}
    for name, (words, hidden) in json.loads(sys.argv[1]).items():
        lines.clear()
        missing = object()
        before = {package: sys.modules.get(package, missing) for package in hidden}
        # None makes Python say that there is no such module.
        sys.modules.update(dict.fromkeys(hidden))
        try:
            code = cli._run(words, trace=False)
        except BaseException as error:
            code = None
            lines.append(repr(error))
        for package, module in before.items():
            del sys.modules[package]
            if module is not missing:
                sys.modules[package] = module
        results[name] = code, " ".join(lines)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
