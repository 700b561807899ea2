"""Models with modules of TorchScript, which no recipe can look into."""

import pytest
import torch
from exported_module import plain_losses
from torch import nn

import advisor

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:FutureWarning")


class Convolving(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), torch.jit.script(nn.BatchNorm2d(4))

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x)))
        return (x * torch.sigmoid(x) + 1.0).mean((2, 3))


def made_alike(make):
    torch.manual_seed(0)
    return make()


MAKERS = {
    "script": lambda: torch.jit.script(Convolving()),
    "script inside": Convolving,
    "script in a row": lambda: nn.Sequential(torch.jit.script(Convolving())),
}


@pytest.mark.parametrize("setting", ["model.conv_bias_before_norm: false"])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore:.*is left out.*TorchScript:UserWarning")
def test_a_model_with_torchscript_trains_the_same_under_settings_that_trace(name, setting, tmp_path):
    path = tmp_path / "tuned.yaml"
    path.write_text(f"{setting}\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4)) for _ in range(4)]
    plain, tuned = (made_alike(MAKERS[name]) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (plain, tuned)]
    tuning = advisor.load(path)
    tuned, _ = tuning.prepare(tuned, optimizers[1])
    step = tuning.train_step(tuned, optimizers[1], nn.functional.cross_entropy)
    expected = plain_losses(plain, optimizers[0], data)
    assert [step(batch).item() for batch in data] == pytest.approx(expected, rel=1e-5)
    assert tuned.eval()(data[0][0]).sum().item() == pytest.approx(plain.eval()(data[0][0]).sum().item(), rel=1e-4)
