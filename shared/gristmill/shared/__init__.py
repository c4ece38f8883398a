"""What both sides of the queue share: records, keys, operations, settings, errors."""
