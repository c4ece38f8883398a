"""Say how to install what is missing. Gristmill is installed from a checkout, so every hint works there.

Errors about a missing package get their hint here.
"""

from importlib import metadata


def install_hint(*extras: str) -> str:
    """Return the command that installs extras of Gristmill, such as `s3`, and where to run it."""
    return f"run in a checkout of Gristmill: pip install '.[{','.join(extras)}]'"


def missing_module(error: ModuleNotFoundError) -> str:
    """Return the name of the missing package and the command that installs it."""
    module = (error.name or "").partition(".")[0]
    extra = _smallest_extra_with(module.replace("_", "-"))
    if extra is None:
        return f"{error}; run in a checkout of Gristmill: pip install --force-reinstall ."
    return f"needs {module}; {install_hint(extra)}"


def _smallest_extra_with(distribution: str) -> str | None:
    members: dict[str, set[str]] = {}
    for requirement in metadata.requires("gristmill") or ():
        name, _, condition = requirement.partition(";")
        if "extra ==" in condition:
            extra = condition.rpartition("extra ==")[2].strip(" '\"")
            members.setdefault(extra, set()).add(_bare_name(name))
    having = [extra for extra, names in members.items() if distribution in names]
    return min(having, key=lambda extra: len(members[extra]), default=None)


def _bare_name(requirement: str) -> str:
    """Return `prometheus-client` of `prometheus-client>=0.23`."""
    for mark in "[<>=!~ ":
        requirement = requirement.partition(mark)[0]
    return requirement
