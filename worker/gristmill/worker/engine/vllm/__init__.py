"""The engine in this process: the only modules that know vLLM and torch.

Importing them loads neither, but for `cpu_worker`, which vLLM itself imports.
"""
