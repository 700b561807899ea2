"""The charts of a session: their figures, and how they look in the HTML report."""

from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest
import tui_histories as histories
from report_text import html_block, html_report, markdown_report
from sample_session import cpu_history, detailed_history, sample_request

from advisor.experiment.events import TrialMeasured
from advisor.experiment.state import SessionState
from advisor.recipe.catalog import load_catalog
from advisor.report.pictures import batch_chart, forest_chart, phases_chart, pictures, steps_chart
from advisor.report.rows import ranking

AFTER = {"data wait": 0.4, "host-to-device": 0.5, "captured step": 12.9}


@pytest.fixture
def state() -> SessionState:
    state = SessionState.of(histories.contributed())
    state.measured_stack = replace(state.stack, result=replace(state.stack.result, phases=AFTER))
    return state


def test_every_setting_has_the_bar_of_its_interval(state) -> None:
    chart = forest_chart(state)
    own, together, *bars = chart.bars
    assert own.start == own.end == next(place for place, name in chart.ticks if name == "1x")
    assert own.start < together.start < together.end < 1
    measured = [row for row in ranking(state).rows if row.figures]
    assert [bar.name for bar in bars] == [row.name for row in measured]
    assert [bar.start > own.start for bar in bars] == [row.figures.effect.ci_low > 1 for row in measured]
    assert [place for place, _ in chart.ticks] == sorted(place for place, _ in chart.ticks)
    assert all(bar.start <= bar.point <= bar.end for bar in (together, *bars))
    assert chart.line == own.start, "a line through all bars at 1x"


@pytest.mark.parametrize("confirmed", [True, False])
def test_the_point_of_a_combination_is_hollow_until_it_is_confirmed(state, confirmed) -> None:
    record = replace(state.trials["autocast=bfloat16"], settings=state.stack_settings, contribution=None)
    state.apply(TrialMeasured(record))  # it was only measured with the others
    state.measured_stack = replace(state.stack, confirmed=confirmed)
    hollow = {bar.name: bar.hollow for bar in forest_chart(state).bars if bar.point is not None}
    assert hollow.pop("all 4 together") == hollow.pop("autocast=bfloat16") != confirmed
    assert not any(hollow.values()), "the others have trials of their own"
    assert html_block(forest_chart(state)).count("point hollow") == (0 if confirmed else 2)
    state.measured_stack = replace(state.stack, settings=dict([state.stack_settings.popitem()]))
    assert not [bar for bar in forest_chart(state).bars if "together" in bar.name], "it is of one setting"


def test_phases_are_those_of_the_step_before_and_after(state) -> None:
    before, after = phases_chart(state).bars
    assert "".join(part.name[0] for part in before.parts) == "dhflboz"
    assert [part.size for part in after.parts] == list(AFTER.values())
    state.measured_stack = replace(state.stack, result=replace(state.stack.result, phases={}))
    assert [bar.name for bar in phases_chart(state).bars] == ["before"]


def test_step_times_are_a_span_and_a_series_of_blocks(state) -> None:
    baseline, stack = steps_chart(state).bars
    assert stack.end < baseline.start
    assert len(baseline.details[1]) == len(state.baseline.result.blocks)


def test_a_batch_size_that_did_not_run_has_its_reason_in_place_of_a_bar(state) -> None:
    chart = batch_chart(state)
    by_size = {bar.name: bar for bar in chart.bars}
    assert by_size["4,096"].end == 0.0
    assert by_size["4,096"].details == ("out of memory",)
    assert by_size["64"].details[0] == "yours"
    assert "knee" in by_size["256"].details
    assert max(bar.end for bar in chart.bars) == 1.0


@pytest.mark.parametrize(
    "history", [[], histories.start(), histories.failure(), histories.judged_nothing(), cpu_history()]
)
def test_what_is_not_known_is_not_drawn(history) -> None:
    state = SessionState.of(history)
    assert batch_chart(state) is None
    for chart in pictures(state):
        Xml.fromstring(html_block(chart))


def test_every_picture_is_well_formed_and_a_users_name_is_text(state) -> None:
    for chart in pictures(state):
        Xml.fromstring(html_block(chart))
    chart = forest_chart(state)
    drawn = html_block(replace(chart, bars=(replace(chart.bars[1], name='<script>"&', text="</svg>"),), title="<b>"))
    assert [text for one in Xml.fromstring(drawn).iter("b") for text in one.itertext()] == ['<script>"&']
    assert "<script" not in drawn


def test_the_html_report_holds_the_pictures_and_needs_nothing_else() -> None:
    state = SessionState.of(detailed_history())
    drawn = pictures(state)
    page = html_report(state, sample_request(), load_catalog())
    assert page.count("<figure>") == len(drawn) > 2
    assert "http" not in page.replace("http-equiv", "").split("</style>")[1].split("<svg")[0]
    assert "@style@" not in page
    assert "Pictures" not in markdown_report(state, sample_request(), load_catalog())
