"""Be a Python without what Windows lacks, then run the statements that are given as arguments.

Modules are hidden from `unmask` alone, because other packages ask which system they are on. The
functions are hidden from everybody, after the packages that use them have been imported.
"""

import builtins
import importlib
import io
import os
import pkgutil
import signal
import sys

import torch._dynamo  # noqa: F401  (asks for the user's name, which needs the functions)

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
FUNCTIONS = """
    uname pwrite pread pwritev preadv fork forkpty getuid geteuid getgid getegid setsid setuid
    setgid getpgid killpg chown fchown fchmod getloadavg sysconf statvfs fstatvfs sched_getaffinity
    sched_setaffinity mkfifo nice wait wait3 wait4 posix_spawn sendfile lockf posix_fadvise
    O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_SYNC
""".split()
SIGNALS = """
    SIGALRM SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGTSTP SIGSTOP SIGCONT SIGWINCH
    alarm setitimer getitimer pause sigwait pthread_sigmask pthread_kill
""".split()


def hide() -> None:
    """Hide the modules, the functions and /proc."""
    for module, names in ((os, FUNCTIONS), (signal, SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    original = builtins.__import__

    def without(name, globals=None, locals=None, fromlist=(), level=0):
        asking = (globals or {}).get("__name__", "")
        if not level and name in MODULES and asking.split(".")[0] in ("unmask", "__main__"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, globals, locals, fromlist, level)

    builtins.__import__ = without
    for module, names in ((builtins, ["open"]), (io, ["open"]), (os, ["open", "stat", "listdir"])):
        for name in names:
            setattr(module, name, _without_proc(getattr(module, name)))


def _without_proc(function):
    def called(path=".", *arguments, **named):
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *arguments, **named)

    return called


def raised_by(statement: str) -> str:
    """Run a statement that must fail; return the name of its error."""
    try:
        exec(statement, {"__name__": "__main__"})
    except (ImportError, AttributeError, OSError) as error:
        return type(error).__name__
    return "nothing"


def import_all() -> int:
    """Import every module of the package but `unmask.__main__`, and count them."""
    import unmask

    names = [module.name for module in pkgutil.walk_packages(unmask.__path__, "unmask.")]
    names = ["unmask", *(name for name in names if not name.endswith("__main__"))]
    for name in names:
        importlib.import_module(name)
    return len(names)


def unmask(*arguments: str) -> None:
    """Run the command line with these arguments; end with its exit code if that is not 0."""
    from unmask.cli import main

    sys.argv = ["unmask", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    hide()
    for statement in sys.argv[1:]:
        exec(statement)
