"""The engine in this process: the only modules that know vLLM and torch; importing them loads neither."""
