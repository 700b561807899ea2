"""Configs in the styles of public projects (tests/data/configs), and what a patch makes of each.

``python tests/project_configs.py`` writes what it makes of them to tests/data/config_patches.txt: read the diff.
"""

import sys
from pathlib import Path

from advisor.export.config_patch import Patch, diff, patched
from advisor.export.configs.words import Wanted
from advisor.records import Mode

DATA = Path(__file__).parent / "data"
CONFIGS = {path.name: path for path in sorted((DATA / "configs").iterdir())}
PATCHES = DATA / "config_patches.txt"
TUNED = {
    "precision.autocast": "bfloat16",
    "compile.mode": "max-autotune",
    "optimizer.implementation": "fused",
    "data.num_workers": 4,
    "data.persistent_workers": True,
    "data.pin_memory": True,
    "data.non_blocking": True,
    "step.cuda_graph": True,
    "model.memory_format": "channels_last",
    "step.accumulate": 2,
}
CURRENT = {"precision.autocast": "none", "compile.mode": "none"}
ALONG = {"data.prefetch_factor": 2}


def text_of(name: str) -> str:
    """A config's text with the line endings that it has."""
    return CONFIGS[name].read_bytes().decode()


def patch_of(name: str, settings=TUNED, *, on_cpu: bool = False, gpus: int = 1, **options) -> Patch:
    """A config patched as a session would."""
    wanted = Wanted(settings, CURRENT, {}, ALONG, Mode.TRAIN, on_cpu, gpus)
    return patched(text_of(name), wanted, name=name, **options)


def described(name: str) -> str:
    """What the patch of a config says and changes."""
    patch = patch_of(name)
    remarks = "".join(f"remark: {remark}\n" for remark in patch.remarks)
    rest = f"rest: {', '.join(patch.rest)}\n" if patch.rest else ""
    return f"=== {name}: {patch.kind}\n{rest}{remarks}{diff(text_of(name), patch.text, name)}\n"


if __name__ == "__main__":
    sys.exit(PATCHES.write_text("".join(map(described, CONFIGS)), encoding="utf-8") <= 0)
