"""Test how many suspects may run at the same time."""

from gristmill.worker.engine_load import EngineLoad


async def test_suspects_double_up_to_one_claim_and_a_death_narrows_them() -> None:
    load, widths = EngineLoad(), []
    for _ in range(9):
        widths.append(load.suspect_width)
        load.widen_suspects()
    assert widths == [1, 2, 4, 8, 16, 32, 64, 128, 128]
    load.narrow_suspects()
    assert load.suspect_width == 1
