"""The HTTP gateway: OpenAI's Files and Batches API, and single requests, over one queue.

`server.py` runs it, `app.py` puts it together, a module each has the routes of files, batches, requests and
models. What a call needs beside its own words (who calls, how much he may, what went wrong) is in
`callers.py`, `limits.py` and `errors.py`.
"""
