"""The number types that a GPU's matrix units compute in, which is what recipes ask of it."""

from __future__ import annotations

from collections.abc import Mapping

# The compute capability from which NVIDIA's tensor cores take a type. CUDA C++ Programming Guide, "Compute
# Capabilities"; tf32 is the form in which they take float32.
NVIDIA_SINCE: Mapping[str, tuple[int, int]] = {"float16": (7, 0), "bfloat16": (8, 0), "tf32": (8, 0), "float8": (8, 9)}
# The same for AMD's, by the beginning of the architecture's name. ROCm documentation, "Data types and precision
# support"; PyTorch maps its float8 and tf32 settings to them on the MI300 only. Untested.
AMD_TYPES: Mapping[str, tuple[str, ...]] = {
    "gfx908": ("float16", "bfloat16"),
    "gfx90a": ("float16", "bfloat16"),
    "gfx94": ("float16", "bfloat16", "tf32", "float8"),
    "gfx11": ("float16", "bfloat16"),
    "gfx12": ("float16", "bfloat16"),
}


def nvidia_types(capability: tuple[int, int] | None) -> tuple[str, ...]:
    """The types of an NVIDIA GPU's tensor cores."""
    return tuple(name for name, since in NVIDIA_SINCE.items() if (capability or (0, 0)) >= since)


def amd_types(architecture: str) -> tuple[str, ...]:
    """The types of an AMD GPU's matrix cores, by the name of its architecture such as ``gfx942:sramecc+``."""
    return next((types for prefix, types in AMD_TYPES.items() if architecture.startswith(prefix)), ())
