from gristmill.producer.own_ids import MAX_IDS, OwnIds


def test_the_oldest_ids_go_when_there_are_too_many() -> None:
    own = OwnIds()
    own.add(["first", "second"])
    own.add(f"id-{number}" for number in range(MAX_IDS - 1))
    assert "first" not in own
    assert "second" in own
    assert "id-0" in own
