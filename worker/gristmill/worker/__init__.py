"""The worker's side: claim requests, run them on the engine, settle them."""
