"""Run several workers under one parent process: `gristmill worker --engines N` and `--devices`.

`planned_children` says which workers there are, and what memory, cores and devices each gets.
`run_parent` runs them: it starts each as a process (`child_process.py`), restarts one that died
(`child.py`), passes signals on, and serves the probes and metrics of all (`parent_probes.py`).
`engine_child.py` is the process of one worker; its `ParentLink` is the other end of the parent's.
"""

from gristmill.worker.parent.child_plan import ALL, ChildPlan, num_device_groups, planned_children
from gristmill.worker.parent.parent_link import ParentLink, Report
from gristmill.worker.parent.run_parent import run_parent

__all__ = [
    "ALL",
    "ChildPlan",
    "ParentLink",
    "Report",
    "num_device_groups",
    "planned_children",
    "run_parent",
]
