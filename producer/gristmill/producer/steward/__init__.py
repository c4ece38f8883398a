"""The steward: RQ's background jobs that move batches forward. Only this package imports rq.

A batch's state lives in the queue's Redis; RQ only runs the next piece of work. A lost job is never
a lost batch. Read `dispatcher.py` (enqueues jobs), `jobs.py` (the jobs), `job_registry.py` (runs
them safely). docs/steward.md has the map of the files.
"""
