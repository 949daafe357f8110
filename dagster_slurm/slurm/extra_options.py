"""Further sbatch options that a user states: which are refused, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from dagster_slurm.errors import ConfigurationError
from dagster_slurm.slurm.arguments import plain_text

_SESSION: Final = "the session sets it on every job"
_ONE_JOB: Final = "an allocation is exactly one job whose id sbatch prints"
_LOCAL: Final = "it names the cluster or user to submit as, which the connection decides"
_WAITS: Final = "a worker that waits for another job can wait for its own session for ever"
_ONE_TASK: Final = "an allocation runs one agent per node"
_ENVIRONMENT: Final = "it decides the job's environment, which the session sets up"


def _field(name: str) -> str:
    return f"the field {name} states it"


# Long names of sbatch's options that cannot be passed on, each with the reason.
_RESERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            [
                "job-name",
                "comment",
                "output",
                "error",
                "parsable",
                "signal",
                "requeue",
                "no-requeue",
                "chdir",
            ],
            _SESSION,
        ),
        "workdir": _SESSION,
        **dict.fromkeys(
            ["input", "quiet", "usage", "help", "version", "wait", "wrap", "test-only"],
            _ONE_JOB,
        ),
        **dict.fromkeys(["array", "het-group", "pack-group"], _ONE_JOB),
        **dict.fromkeys(["export", "export-file", "get-user-env"], _ENVIRONMENT),
        **dict.fromkeys(["clusters", "cluster", "cluster-constraint", "uid", "gid"], _LOCAL),
        "dependency": _WAITS,
        **dict.fromkeys(
            [
                "ntasks",
                "ntasks-per-node",
                "tasks-per-node",
                "ntasks-per-core",
                "ntasks-per-socket",
            ],
            _ONE_TASK,
        ),
        **dict.fromkeys(["ntasks-per-gpu", "gpus-per-task"], _ONE_TASK),
        **{
            name: _field(name.replace("-", "_"))
            for name in (
                "partition",
                "account",
                "qos",
                "reservation",
                "constraint",
                "nodes",
                "gpus-per-node",
                "cpus-per-task",
                "mem",
                "mem-per-cpu",
                "mem-per-gpu",
                "nodelist",
                "exclude",
            )
        },
        "time": _field("time_limit"),
    }
)
_LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "a": "array",
        "A": "account",
        "c": "cpus-per-task",
        "C": "constraint",
        "d": "dependency",
        "D": "chdir",
        "e": "error",
        "h": "help",
        "i": "input",
        "J": "job-name",
        "M": "clusters",
        "n": "ntasks",
        "N": "nodes",
        "o": "output",
        "p": "partition",
        "q": "qos",
        "Q": "quiet",
        "t": "time",
        "u": "usage",
        "V": "version",
        "w": "nodelist",
        "W": "wait",
        "x": "exclude",
    }
)
# Letters without a value, after which further letters may follow in the same argument.
_FLAG_LETTERS: Final = frozenset("hHIOQsuvVW")
# An option of its own whose name is the start of a reserved one.
_OWN_NAMES: Final = frozenset({"gpus"})
_LONG: Final = re.compile(r"--(?P<name>[A-Za-z0-9][A-Za-z0-9_-]*)(?P<value>=.*)?", re.DOTALL)


def check_extra_options(options: Iterable[str], field: str = "extra_options") -> None:
    """Refuse options that the session sets itself, in any spelling sbatch takes, and arguments that are no option.

    Every option is one argument: ``--licenses=a:1``, ``--exclusive``, ``-La:1``. A value in an argument of its own
    is refused, because only the site's version of sbatch knows whether it would be a value or the script.

    Raises:
        ConfigurationError: an option is refused; names `field` and the option.
    """
    for option in options:
        text = plain_text(option, field)
        long = _LONG.fullmatch(text)
        if long is not None:
            _check_long(text, long["name"].replace("_", "-").lower(), field)
        elif len(text) > 1 and text[0] == "-" and text[1].isalpha():
            _check_letters(text, field)
        else:
            raise ConfigurationError(
                f"{option!r} is not one sbatch option in one argument.",
                field=field,
                remedy='Write each option with its value as one item, such as "--licenses=matlab:1".',
            )


def _check_long(text: str, name: str, field: str) -> None:
    if name in _RESERVED:
        _refuse(text, name, field)
    if name in _OWN_NAMES:
        return
    # getopt takes any beginning of a name that fits one option; which ones do differs by version.
    for reserved in _RESERVED:
        if reserved.startswith(name):
            _refuse(text, reserved, field)


def _check_letters(text: str, field: str) -> None:
    for letter in text[1:]:
        if letter in _LETTERS:
            _refuse(text, _LETTERS[letter], field)
        if letter not in _FLAG_LETTERS:
            return


def _refuse(text: str, name: str, field: str) -> None:
    raise ConfigurationError(
        f"{text!r} cannot be passed to sbatch as --{name}: {_RESERVED[name]}.",
        field=field,
    )
