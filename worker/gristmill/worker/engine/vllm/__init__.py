"""Run vLLM in this process. Only these modules use vLLM and torch.

Importing them loads neither, with two exceptions: `statistics`, which other modules import late,
and `cpu_worker`, which only vLLM imports.
"""
