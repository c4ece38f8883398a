"""The producer's commands, entry points of `gristmill.commands`.

Each click group has one module of its name: batch, dead, queue, tenant. The single commands are in submit,
requests (status, result, cancel). Each of these modules imports click and little else at its top, so that
`gristmill --help` is quick. The other modules do the work.
"""
