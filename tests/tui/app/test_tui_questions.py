"""Ten questions that a person has after a session: each is answered on at most one key press from view 1."""

import pytest
import tui_histories as histories
from tui_fakes import make_app
from tui_pilot import SIZES, press, screen_text, settle

from advisor.experiment.outputs import Outputs

# The question, the key, and what has to stand on the screen then.
QUESTIONS = [
    ("what is my step", [], ["32.6 →"]),
    ("what is it bound by", [], ["compute-heavy"]),
    ("what helps most", [], ["★ all 4 together", "2.35x", "★ autocast"]),
    ("with which memory", [], ["5.20 GiB"]),
    ("what changes results", [], ["changed", "☐!"]),
    ("what was not tried, and why", ["end"], ["5 not applicable", "float8: "]),
    ("is it certain", [], ["2.32–2.37, confirmed"]),  # noqa: RUF001
    ("what do I type now", ["4"], ["run your training with train.tuned.yaml"]),
    ("what changed in my file", ["4"], ["-amp: none", "+amp: bfloat16"]),
    ("how do I undo it", ["4"], ["your own file stays"]),
]


@pytest.mark.parametrize("size", SIZES)
async def test_each_is_answered_on_one_key_press(size, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("lr: 0.1\namp: none\n")
    missing = []
    for question, keys, answers in QUESTIONS:
        app, _ = make_app(histories.contributed(), config_path="train.yaml")
        app.context.outputs = Outputs(config_path="train.yaml", key_map={"precision.autocast": "amp"})
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await press(pilot, *keys)
            shown = " ".join(screen_text(app).replace("│", " ").split())
            missing += [(question, answer) for answer in answers if answer not in shown]
    assert missing == []
