import pytest

from gristmill.producer.frames.python_words import python_words
from gristmill.producer.tables.answer_columns import AnswerColumns
from gristmill.shared.errors import InvalidRequest


def test_all_new_names_of_columns_become_one_dict() -> None:
    told = r"other names: rename={'answer': 'answer_3', 'error': 'error_2'}$"
    with pytest.raises(InvalidRequest, match=told), python_words():
        AnswerColumns({}, ["answer", "answer_2", "error"])
