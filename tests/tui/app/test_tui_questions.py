"""Ten questions that a person has after a session: each is answered on at most one key press from view 1."""

import pytest
import tui_histories as histories
from tui_fakes import make_app
from tui_pilot import SIZES, press, screen_text, settle

from advisor.experiment.outputs import Outputs

# The key, the question, and what has to stand on the screen then.
QUESTIONS = {
    "home": {
        "what is my step": ["32.6 →"],
        "what is it bound by": ["compute-heavy"],
        "what helps most": ["★ all 4 together", "2.35x", "★ autocast"],
        "with which memory": ["5.20 GiB"],
        "what changes results": ["changed", "☐!"],
        "is it certain": ["2.32–2.37, confirmed"],  # noqa: RUF001
    },
    "end": {"what was not tried, and why": ["5 not applicable", "float8: "]},
    "4": {
        "what do I type now": ["run your training with train.tuned.yaml"],
        "what changed in my file": ["-amp: none", "+amp: bfloat16"],
        "how do I undo it": ["your own file stays"],
    },
}


@pytest.mark.parametrize("size", SIZES)
async def test_each_is_answered_on_one_key_press(size, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("lr: 0.1\namp: none\n")
    app, _ = make_app(histories.contributed(), config_path="train.yaml")
    app.context.outputs = Outputs(config_path="train.yaml", key_map={"precision.autocast": "amp"})
    missing = []
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for key, questions in QUESTIONS.items():
            await press(pilot, key)
            shown = " ".join(screen_text(app).replace("│", " ").split())
            missing += [
                (question, text) for question, texts in questions.items() for text in texts if text not in shown
            ]
    assert missing == []
