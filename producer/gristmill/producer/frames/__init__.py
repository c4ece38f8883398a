"""A table of the caller's program in, the same kind of table out: `map_table`.

`table_calls.py`, one folder above, has the two public functions. This package uses `tables` for all that is not about
kinds of tables.

- `frame_options` reads the keywords of a call.
- `frame_kinds`: pandas, Polars, pyarrow and `datasets`, by way of Arrow.
- `called_requests`: the requests that a function of the caller makes.
- `frame_run`: one call, from the check of the rows to the answers.
- `python_words` turns an error about an option of the command into one about a keyword.

Every module needs the extra `tables`. The import below comes first, so that an error about a missing
package names this extra.
"""

import pyarrow  # noqa: F401
