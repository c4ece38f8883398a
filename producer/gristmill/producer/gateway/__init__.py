"""The HTTP gateway: OpenAI's Files and Batches API, and single requests, over one queue.

`server.py` starts it and names every router. `routes_*.py` hold the endpoints, one file per
resource. `context.py` holds what all routes share. docs/gateway.md has the map of the files.
"""
