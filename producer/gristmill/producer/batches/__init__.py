"""Files of requests, in OpenAI's batch format.

A file runs in one of two ways. `gristmill submit` is one process that reads a file and writes a file.
A batch is run by stewards, and clients see it through the gateway or `gristmill batch`.

    rows/           the lines of an input and the rows of an output; both ways use it
    submit_run/     the files of one `gristmill submit`
    lifecycle/      the steps of a steward, from validation to the output files
    batch_service   what a client can ask for: create, list, cancel, retry, read results
    shown_batches   what a client sees of a batch beside its record
    batch_store     the state of batches: queue, storage, settings, and the modules below
      batch_records   batches in Redis; batch_state is one of them as read
      child_batches   the children of a batch of several queues; model_settings says which queue has which model
      joined_parts    their parts, read as those of one batch
      due_batches     which batch needs a steward, and when
      stored_files    files of tenants; upload writes a new one
      file_purge      removes files and batches with their objects, of one tenant or of all
      creations       which call with an Idempotency-Key created what
      storage_use     how many bytes the storage keeps for a tenant, and the quota
      storage         the folder or bucket that holds the bytes

Import each package by its own name; its `__init__` lists what others may use. `rows` imports nothing
else from here, and only stewards import `lifecycle`.

The path of a row: `Execution` collects a result, `LineTracker` turns it into a row, and `RowBuffer`
writes rows into the storage. `LeasedBatch.commit` then makes them visible with `lua/commit.lua`.
Nothing else changes the record or the checkpoint of a batch.
"""
