from dataclasses import dataclass, replace

from advisor.experiment.cached import cached


@dataclass(frozen=True)
class Scale:
    factor: int
    asked: list

    @cached
    def of(self, number, *, plus=0):
        self.asked.append((number, plus))
        return self.factor * number + plus


def test_each_answer_is_worked_out_once_for_a_value_and_its_arguments():
    scale = Scale(3, [])
    assert [scale.of(2), scale.of(2), scale.of(2, plus=1), scale.of(5), scale.of(2, plus=1)] == [6, 6, 7, 15, 7]
    assert scale.asked == [(2, 0), (2, 1), (5, 0)]


def test_a_changed_value_keeps_answers_of_its_own():
    scale = Scale(3, [])
    scale.of(2)
    assert replace(scale, factor=4).of(2) == 8
