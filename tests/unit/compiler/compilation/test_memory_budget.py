"""How a step is lowered again and again until its plan keeps to a budget of memory."""

import pytest

from tilewright.compilation import memory_budget
from tilewright.compilation.memory_budget import within_memory_budget
from tilewright.ir import InputError, parse

STEP = """module @m {
  graph.func @main(%x: f32[2, 4], memory_budget = 1000) -> f32[2, 4] {
    graph.return(%x)
  }
}"""


def lowered_by(monkeypatch, taken_of, refused_below=0):
    """What lowers a module to the budget that it asks for, and the budgets that were asked for."""
    asked = []

    def lowered(module):
        budget = module.main["memory_budget"]
        asked.append(budget)
        if budget < refused_below:
            raise InputError("no choice keeps to it")
        return budget

    monkeypatch.setattr(memory_budget, "one_stream_plan", lambda budget: budget)
    monkeypatch.setattr(memory_budget, "device_bytes", taken_of)
    return lowered, asked


def test_what_a_plan_takes_too_much_is_asked_for_less(monkeypatch):
    lowered, asked = lowered_by(monkeypatch, lambda budget: budget + 40)
    assert within_memory_budget(parse(STEP), lowered) == 960
    assert asked == [1000, 960]


def test_plans_that_shrink_by_steps_are_asked_for_ever_less(monkeypatch):
    lowered, asked = lowered_by(monkeypatch, lambda budget: 1010 if budget > 940 else 990)
    assert within_memory_budget(parse(STEP), lowered) == 930
    assert asked == [1000, 990, 970, 930]


def test_between_too_much_and_too_little_is_the_middle(monkeypatch):
    lowered, asked = lowered_by(monkeypatch, lambda budget: 1100 if budget > 960 else 1000, refused_below=940)
    assert within_memory_budget(parse(STEP), lowered) == 950
    assert asked == [1000, 900, 950]


def test_the_least_of_all_plans_is_said(monkeypatch):
    lowered, _ = lowered_by(monkeypatch, lambda budget: 1500 - budget // 4, refused_below=990)
    with pytest.raises(InputError, match=r"@main: expected a memory budget of at least 1250 bytes"):
        within_memory_budget(parse(STEP), lowered)
    with pytest.raises(InputError, match="no choice keeps to it"):
        within_memory_budget(parse(STEP), lowered_by(monkeypatch, lambda budget: budget, 2000)[0])
