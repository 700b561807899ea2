"""The charts of a session: their figures, their legends, and how they look as SVG."""

from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest
import tui_histories as histories
from sample_session import detailed_history, sample_request

from advisor.experiment.state import SessionState
from advisor.export import svg
from advisor.export.formats.html import html_report
from advisor.export.formats.markdown import markdown_report
from advisor.recipe.catalog import load_catalog
from advisor.recipe.settings import Settings
from advisor.report.charts import (
    Axis,
    Line,
    Mark,
    Plot,
    Tone,
    linear_axis,
    log_axis,
    without_outliers,
)
from advisor.report.conclusions import roof_shares
from advisor.report.pareto import front_of, measured_points
from advisor.report.pictures import (
    batch_chart,
    forest_chart,
    front_chart,
    initial_of,
    phases_chart,
    pictures,
    roofline_chart,
    steps_chart,
)
from advisor.report.rows import ranking

AFTER = {"data wait": 0.4, "host-to-device": 0.5, "captured step": 12.9}


@pytest.fixture
def state() -> SessionState:
    state = SessionState.of(histories.contributed())
    assert state.stack is not None
    state.stack = replace(state.stack, result=replace(state.stack.result, phases=AFTER))
    return state


# --- figures ------------------------------------------------------------------------------------------------------


def test_every_setting_has_the_bar_of_its_interval(state) -> None:
    chart = forest_chart(state)
    assert chart is not None
    own, together, *bars = chart.bars
    assert (own.start, own.end, own.is_mark) == (1.0, 1.0, True)
    assert (together.start, together.end) == (state.stack.comparison.ci_low, state.stack.comparison.ci_high)
    measured = [row for row in ranking(state).rows if row.figures]
    assert [(bar.name, bar.start, bar.end) for bar in bars] == [
        (row.name, row.figures.effect.ci_low, row.figures.effect.ci_high) for row in measured
    ]
    assert {bar.tone for bar in bars if bar.start > 1.01} == {Tone.FASTER}


def test_speed_against_memory_has_a_point_for_all_that_was_measured(state) -> None:
    plot = front_chart(state)
    assert plot is not None
    signs = [mark.sign for mark in plot.marks]
    assert signs[-2:] == ["B", "S"]  # nothing is drawn over these
    ranks = [str(item.rank) for item in state.recommendations if item.record.alone]
    assert sorted(sign for sign in signs if sign.isdigit()) == ranks
    assert [told.split()[0] for sign, _, told in plot.legend if sign == "S"] == ["stack"]
    assert len(plot.lines[0].points) == len(front_of(state)) == 3
    assert len(plot.marks) >= len(measured_points(state))


def test_without_a_stack_the_baseline_keeps_its_sign(state) -> None:
    state.stack = None
    signs = {mark.sign: mark.label for mark in front_chart(state).marks}
    assert signs["B"].startswith("baseline")
    assert "S" not in signs


def test_the_name_of_the_last_tick_stays_inside_the_picture() -> None:
    end = Axis("peak memory, MiB", 425.0, 550.0, ((550.0, "1,234.5"),))
    [x] = [
        x
        for x, _, anchor, text in _texts(svg.figure(Plot("t", "w", end, end)))
        if anchor == "middle" and text[0] == "1"
    ]
    assert x + len("1,234.5") * svg._CHARACTER / 2 <= svg.WIDTH


def test_the_highlighted_recommendation_is_marked(state) -> None:
    chosen = state.recommendations[1].record
    plot = front_chart(state, chosen.settings)
    assert plot is not None
    marked = [mark for mark in plot.marks if mark.tone is Tone.CHOSEN]
    [mark] = marked
    assert (mark.label.split()[0], mark.y) == (chosen.candidate.recipe, chosen.comparison.speedup)


def test_an_outlier_does_not_squeeze_all_others(state) -> None:
    point = replace(measured_points(state)[-1], name="huge", settings={"x.y": 1}, peak_reserved_bytes=130 * 2**30)
    state.combinations[Settings({"x.y": 1})] = point
    plot = front_chart(state)
    assert plot is not None
    assert plot.x.high < 60  # a recommended batch size takes 34.6 GiB and is kept
    assert plot.x.place(next(mark.x for mark in plot.marks if mark.x > 100)) == 1.0


def test_phases_have_initials_of_their_own(state) -> None:
    chart = phases_chart(state)
    assert chart is not None
    before, after = chart.bars
    assert "".join(part.initial for part in before.parts) == "WHFLBOZ"
    assert [part.size for part in after.parts] == list(AFTER.values())
    assert after.parts[-1].initial == initial_of("captured step") == "C"
    assert before.size > after.size


def test_without_phases_of_the_stack_there_is_one_bar(state) -> None:
    state.stack = replace(state.stack, result=replace(state.stack.result, phases={}))
    chart = phases_chart(state)
    assert chart is not None
    assert [bar.name for bar in chart.bars] == ["before"]


def test_both_points_lie_under_the_roof_of_their_type(state) -> None:
    plot = roofline_chart(state)
    assert plot is not None
    assert plot.x.log
    assert plot.y.log
    assert [mark.sign for mark in plot.marks] == ["B", "S"]
    profile = state.facts.profile
    assert {mark.x for mark in plot.marks} == {profile.flops_per_step / profile.moved_bytes_per_step}
    for mark, share in zip(plot.marks, roof_shares(state), strict=True):
        assert mark.y == pytest.approx(share.share * share.ceiling_flops_per_s)
        assert mark.y < share.ceiling_flops_per_s
    assert plot.marks[0].y < plot.marks[0].x * profile.copy_bytes_per_s
    assert "it moves fewer bytes" in plot.words  # else it could not lie above the slope
    assert [line.label.split()[0] for line in plot.lines] == ["float32", "bfloat16"]
    assert "the limit is arithmetic" in plot.words


def test_below_the_ridge_memory_is_the_limit(state) -> None:
    profile = replace(state.facts.profile, moved_bytes_per_step=10**12)
    state.facts = replace(state.facts, profile=profile)
    assert "left of the ridge" in roofline_chart(state).words
    assert "the limit is memory traffic" in roofline_chart(state).words


def test_step_times_are_shares_of_blocks(state) -> None:
    plot = steps_chart(state)
    assert plot is not None
    baseline, stack = plot.lines
    assert [y for _, y in baseline.points][-1] == 1.0
    assert [x for x, _ in baseline.points] == sorted(x for x, _ in baseline.points)
    assert len(baseline.points) == 2 * len(state.baseline.result.blocks)
    assert stack.points[0][0] == min(block.step_ms for block in state.stack.result.blocks)


def test_a_batch_size_that_did_not_run_stands_at_the_bottom(state) -> None:
    plot = batch_chart(state)
    assert plot is not None
    by_size = {mark.x: mark for mark in plot.marks}
    assert by_size[4096].y == 0.0
    assert by_size[4096].label == "out of memory"
    assert by_size[64].label.startswith("yours")
    assert by_size[256].sign == "◆"
    assert all(size not in {x for x, _ in plot.lines[0].points} for size in (4096,))


@pytest.mark.parametrize(
    "history", [[], histories.start(), histories.failure(), histories.judged_nothing(), histories.cpu_demo()]
)
def test_what_is_not_known_is_not_drawn(history) -> None:
    state = SessionState.of(history)
    assert roofline_chart(state) is None
    assert batch_chart(state) is None


# --- axes and labels ----------------------------------------------------------------------------------------------


def test_ticks_are_round_and_enclose_the_values() -> None:
    axis = linear_axis("x", [3.1, 9.3])
    assert axis.low <= 3.1
    assert axis.high >= 9.3
    assert [name for _, name in axis.ticks] == ["2", "4", "6", "8", "10"]
    assert [name for _, name in log_axis("x", [3, 4000], "{:g}".format).ticks] == ["10", "100", "1000"]
    assert axis.place(axis.low) == 0.0
    assert axis.place(1e9) == 1.0


@pytest.mark.parametrize("values", [[1.0], [5.0, 5.0], [1e-9, 1e12], [0.0], []])
def test_an_axis_of_anything_can_be_drawn(values) -> None:
    for axis in (linear_axis("x", values), log_axis("x", values, "{:g}".format)):
        assert axis.low < axis.high
        assert all(0.0 <= axis.place(value) <= 1.0 for value in (*values, -1.0, 0.0, 1e30))


def test_only_what_is_far_beyond_all_others_is_cut_off() -> None:
    assert without_outliers([1, 2, 3, 100], []) == [1, 2, 3]
    assert without_outliers([1, 2, 3, 100], [100]) == [1, 2, 3, 100]
    assert without_outliers([-90, 1, 2, 3], []) == [1, 2, 3]
    assert without_outliers([1, 2, 5], []) == [1, 2, 5]
    assert without_outliers([1, 2, 3, 8], []) == [1, 2, 3, 8]


def test_the_legend_has_each_sign_once_and_the_most_important_first() -> None:
    axis = Axis("", 0.0, 1.0)
    marks = [Mark(0.1 * place, 0.5, "✗", Tone.SLOWER, "out of memory") for place in range(3)]
    plot = Plot(
        "",
        "",
        axis,
        axis,
        (Line(((0.0, 0.2), (1.0, 0.2)), Tone.LIMIT, "limit"),),
        (
            *marks,
            Mark(0.5, 0.5, "•", Tone.OTHER),
            Mark(0.9, 0.5, "B", Tone.BASELINE, "baseline"),
        ),
    )
    assert [(sign, told) for sign, _, told in plot.legend] == [
        ("B", "baseline"),
        ("✗", "out of memory"),
        ("─", "limit"),
    ]


# --- SVG ----------------------------------------------------------------------------------------------------------


def _texts(markup: str) -> list[tuple[float, float, str, str]]:
    root = Xml.fromstring(markup[markup.index("<svg") : markup.index("</svg>") + 6])
    return [(float(e.get("x")), float(e.get("y")), e.get("text-anchor"), e.text or "") for e in root.iter("text")]


def test_every_picture_is_well_formed_and_within_its_frame(state) -> None:
    charts = pictures(state)
    assert [chart.title for chart in charts] == [
        "Speed-up of every setting",
        "Speed against memory",
        "Where a step goes",
        "Roofline",
        "Step times",
        "Batch sizes",
    ]
    for chart in charts:
        drawn = Xml.fromstring(svg.figure(chart))
        assert (drawn.find("svg") is not None) is isinstance(chart, Plot)
        for x, y, anchor, text in _texts(svg.figure(chart)) if isinstance(chart, Plot) else ():
            width = 6.6 * len(text)
            left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
            assert left > -8, (chart.title, text)
            assert left + width < svg.WIDTH + 8, (chart.title, text)
            assert y > 0


def test_what_a_user_named_is_text_in_a_picture(state) -> None:
    chart = forest_chart(state)
    evil = replace(chart.bars[1], name='<script>"&', text="</svg>")
    drawn = svg.figure(replace(chart, bars=(evil,), title="<b>"))
    assert [text for one in Xml.fromstring(drawn).iter("b") for text in one.itertext()] == ['<script>"&']
    assert "<script" not in drawn
    assert "</svg>" not in drawn


def test_the_html_report_holds_the_pictures_and_needs_nothing_else() -> None:
    state = SessionState.of(detailed_history())
    charts = pictures(state)
    page = html_report(state, sample_request(), load_catalog())
    assert page.count("<figure>") == len(charts) > 2
    assert all(chart.words.split(":")[0][:20] in page for chart in charts)
    assert "http" not in page.replace("http-equiv", "").split("</style>")[1].split("<svg")[0]
    assert "@style@" not in page
    text = markdown_report(state, sample_request(), load_catalog())
    assert all(f"**{chart.title}.**" in text for chart in charts)
