"""The kinds of tables that a caller may have: each gives its rows as Arrow, and takes more columns.

No library is imported here before the caller has imported it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from gristmill.producer.arguments import kind_of
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.one_line import one_line

_FOREIGN_METADATA = b"huggingface"


class Frame(Protocol):
    """A table of one kind.

    Attributes:
        arrow: Its rows as a pyarrow Table.
    """

    arrow: Any

    def with_columns(self, answers: Any) -> Any:
        """Return the table with the columns of a pyarrow Table after its own."""
        ...


def frame_of(data: Any) -> Frame:
    """Return a caller's table.

    Raises:
        InvalidRequest: It is no table, or Arrow has no type for a column.
    """
    with _arrow_errors(data):
        for library, name, made in _KINDS:
            module = sys.modules.get(library)
            if module is not None and isinstance(data, getattr(module, name)):
                frame: Frame = made(data, module)
                return frame
        if hasattr(data, "__arrow_c_stream__") or isinstance(data, pa.RecordBatch):
            return _ArrowFrame(pa.table(data))
    raise InvalidRequest(
        f"a {kind_of(data)} is no table; give a DataFrame of pandas or Polars, a Table of pyarrow, a Dataset of"
        " datasets, or another object with __arrow_c_stream__"
    )


@contextmanager
def _arrow_errors(data: Any) -> Iterator[None]:
    try:
        yield
    except InvalidRequest:
        raise
    except Exception as error:  # each library has its own classes for values that Arrow cannot hold
        raise InvalidRequest(
            f"the {kind_of(data)} cannot be read as Arrow: {one_line(str(error), 300)}; give each column one type,"
            " or leave the column out"
        ) from error


class _ArrowFrame:
    def __init__(self, arrow: Any) -> None:
        self.arrow = arrow

    def with_columns(self, answers: Any) -> Any:
        metadata = dict(self.arrow.schema.metadata or {})
        metadata.pop(_FOREIGN_METADATA, None)  # it lists the columns, and would hide the added ones
        table = self.arrow.replace_schema_metadata(metadata or None)
        for field, column in zip(answers.schema, answers.columns, strict=True):
            table = table.append_column(field, column)
        return table


class _PandasFrame:
    def __init__(self, data: Any, pandas: Any) -> None:
        self._data = data
        self._pandas = pandas
        self.arrow = pa.Table.from_pandas(data, preserve_index=False)

    def with_columns(self, answers: Any) -> Any:
        """Whole numbers and booleans get the types of pandas that can be null."""
        types = {pa.int64(): self._pandas.Int64Dtype(), pa.bool_(): self._pandas.BooleanDtype()}
        added = answers.to_pandas(types_mapper=types.get)
        return self._data.assign(**{name: added[name].array for name in added})


class _PolarsFrame:
    def __init__(self, data: Any, polars: Any) -> None:
        self._data = data
        self._polars = polars
        self.arrow = pa.table(data)

    def with_columns(self, answers: Any) -> Any:
        return self._data.hstack(self._polars.from_arrow(answers))


class _DatasetFrame:
    def __init__(self, data: Any, datasets: Any) -> None:
        self._data = data
        self._datasets = datasets
        self.arrow = data.with_format("arrow")[:]

    def with_columns(self, answers: Any) -> Any:
        added = self._datasets.Dataset(answers)
        if answers.num_rows:
            return self._datasets.concatenate_datasets([self._data, added], axis=1)
        # `concatenate_datasets` leaves out data sets without rows.
        features = self._datasets.Features(self._data.features | added.features)
        table = _ArrowFrame(self.arrow).with_columns(answers)
        return self._datasets.Dataset(table, info=self._datasets.DatasetInfo(features=features))


_KINDS: tuple[tuple[str, str, Any], ...] = (
    ("pandas", "DataFrame", _PandasFrame),
    ("polars", "DataFrame", _PolarsFrame),
    ("datasets", "Dataset", _DatasetFrame),
)
"""Library, its class, and ours for it. pyarrow's classes need none of their own."""
