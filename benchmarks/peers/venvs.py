"""A separate environment for each peer, in the user's cache. It is made once; `rm -r` removes it.

Peers require clients that exclude each other: arq needs a redis-py that Gristmill does not accept.
And no peer may change the packages of Gristmill itself.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path.home() / ".cache" / "gristmill" / "peers"
INSTALL_TIMEOUT_S = 900


class NotInstalled(Exception):
    """pip could not install the peer; the text has the reason."""


def environment(name: str, packages: Sequence[str], *, with_ours: bool = False) -> Path:
    """Make the peer's environment unless it exists, and return its interpreter.

    Args:
        name: Name of the environment's folder.
        packages: Packages to install with pip, which takes the newest release that it finds.
        with_ours: True if the environment also sees the packages of this interpreter, such as vLLM.

    Raises:
        NotInstalled: pip failed, as it does without a network.
    """
    folder = FOLDER / name
    python = folder / "bin" / "python"
    done = folder / "installed.json"
    if done.exists() and json.loads(done.read_text()) == list(packages):
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    if with_ours:
        ours = [path for path in sys.path if path.endswith("site-packages")]
        site = next((folder / "lib").glob("python*/site-packages"))
        (site / "ours.pth").write_text("\n".join(ours) + "\n")
    _run([str(python), "-m", "pip", "install", "--quiet", *packages])
    done.write_text(json.dumps(list(packages)))
    return python


def versions(python: Path, packages: Sequence[str]) -> str:
    """Return `name version` of each package in an interpreter's environment."""
    names = [package.split("[")[0] for package in packages]
    code = "import sys, importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    return _run([str(python), "-c", code, *names]).strip()


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # our own commands
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command[:5])}: not done in {INSTALL_TIMEOUT_S} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(" ".join(errors or done.stderr.splitlines()[-1:])[:300])
    return done.stdout
