"""A module that trains while it is imported: told at once, where it would go on until the time is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.optim import optimizer as hooks

from advisor.errors import TargetError

# Updates of weights while a module is imported that count as training. A count; fitting something small takes fewer.
MOST_UPDATES = 100


@contextlib.contextmanager
def refusing_to_train(module: str) -> Iterator[None]:
    """Raise TargetError from an optimizer's step once there were too many of them inside this context."""
    updates = 0

    def count(*_: Any) -> None:
        nonlocal updates
        updates += 1
        if updates > MOST_UPDATES:
            script = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
            raise TargetError(
                f"{module} trains while it is imported.",
                f"Move its loop under `if __name__ == '__main__':`; or measure the script as it is: `perf-advisor "
                f"{script}`, without a name after it and without a build() in it.",
            )

    handle = hooks.register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        handle.remove()
