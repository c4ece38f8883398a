"""The engine in this process: the only modules that use vLLM and torch.

Importing them loads neither vLLM nor torch. The exceptions are `statistics`, which loads vLLM and
which other modules import late, and `cpu_worker`, which vLLM itself imports.
"""
