"""What all sessions of these tests share: nobody else uses the machine, whoever does."""

import pytest

from advisor.machine.host import CoresInUse


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch):
    monkeypatch.setattr(CoresInUse, "foreign", lambda cores: 0.0)
