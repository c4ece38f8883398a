"""The HTTP gateway: OpenAI's API, live and in batches, and single requests, over one queue or several.

`server.py` starts it and names every router. `routes_*.py` hold the endpoints, one file per
resource. `context.py` holds what all routes share. docs/gateway.md has the map of the files.
"""
