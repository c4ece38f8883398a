"""Tables as input and output: columns become requests, and answers become columns.

`gristmill submit` uses this package, and so does `map_table`, which is in `frames`.

- `spec`: the options of a table.
- `table_files` finds the files of an input: paths, globs, folders, URLs.
- `readers` reads one file as chunks of rows. `json_types` finds the types of JSONL.
- `csv_rows` reads CSV and refuses an unclosed quote.
- `row_chunks`: a chunk of rows, from Arrow or from JSON.
- `table`: all files of an input as one table. `memory_table`: an Arrow table of a program.
- `column_prompt`, `template_prompt`, `images`: the parts of a prompt.
- `request_maker` turns a row into the body of a request.
- `row_plan` remembers on disk which rows are copies of an earlier row.
- `table_input` checks all rows, then yields their requests. It has the methods of `InputFile`.
- `answer_schema`: the JSON Schema of the answers, from a file or a Pydantic model.
- `schema_types`: the types of columns that a schema describes.
- `answer_json` finds the JSON object in a text.
- `structured_answers` turns the text of an answer into the columns of a schema.
- `answer_columns` turns the answer to a request into columns; nothing else does.
- `second_asking` asks a row once more whose answer was cut.
- `row_answers` takes the answers as they come, also for the copies of a row.
- `answer_parts` keeps finished answers on disk, part by part, in the order of the rows.
- `table_writers` writes Parquet, CSV and JSONL.
- `output_trial` refuses rows that an output cannot hold, before any request runs.
- `table_output`: the output of one run. It has the methods of `OutputFile`.

The path of an answer: `RowAnswers.append` gets a row in OpenAI's format, `AnswerColumns` turns it into
values, and `AnswerParts` writes them into the journal of their part. A part whose rows all have their
values becomes a Parquet file. The merge reads the input once more, together with the parts.

Every module needs the extra `tables`. The import below comes first, so that an error about a missing
package names this extra.
"""

import pyarrow  # noqa: F401
