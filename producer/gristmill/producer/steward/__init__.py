"""The steward: RQ's background jobs that move batches on. The one package that imports rq.

A batch's state lives in the queue's Redis; RQ only runs the next piece of work, so a lost job is never
a lost batch. Read `dispatcher.py` (who enqueues), `jobs.py` (what runs), `worker.py` (who runs it).
"""
