import pytest

from gristmill.shared.chunking import chunks


@pytest.mark.parametrize(
    ("items", "size", "expected"),
    [
        ([], 3, []),
        ([1, 2], 3, [[1, 2]]),
        ([1, 2, 3], 3, [[1, 2, 3]]),
        ([1, 2, 3, 4], 3, [[1, 2, 3], [4]]),
    ],
)
def test_chunks_keep_order_and_lose_nothing(
    items: list[int], size: int, expected: list[list[int]]
) -> None:
    assert list(chunks(items, size)) == expected


def test_chunks_refuse_a_size_of_zero() -> None:
    with pytest.raises(ValueError, match="zero"):
        list(chunks([1], 0))
