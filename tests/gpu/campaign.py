"""What is asked of two GPUs, in calls of at most ten minutes. Results are written as they come; a second call goes on.

    python tests/gpu/campaign.py exports --out results
    python tests/gpu/campaign.py exports --out results2 --skip-done results/exports.jsonl
    python tests/gpu/campaign.py loops --out results

``exports`` runs a session of 60 s on each of 24 workloads, one on each GPU at a time, and times the files that it
exports in plain loops (tests/benchmarks). ``loops`` runs every loop of tests/loops under every setting, in many
processes on all GPUs. ``--small`` tries both on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "tests" / "benchmarks" / "benchmark.py"
# 24 of 16 families. Those that no session had been timed on come first, within what takes equally long.
EXPORTED = (
    *("bags", "wav2vec2", "bert", "tiny_transformer", "vit_infer1", "mobilenet_infer1", "jpeg128", "t5", "recommender"),
    *("bert_infer1", "encoder", "autoencoder", "mlp12", "small_resnet18", "jpeg", "llama", "lstm", "fcn", "sage"),
    *("r3d", "vit", "resnet50", "conformer", "fcos"),
)
SMALL_EXPORTED = ("mlp12", "bags")
SMALL_LOOPS = ("one_batch", "one_cycle_sgd", "resume_sgd", "dropout")
# Seconds of a session; the longest that an expert's process may take; seconds timed in each process.
BUDGET_S, EXPERT_LIMIT_S, TIMED_S = 60, 45, 0.7
SMALL_BUDGET_S = 15
# Seconds after --within at which a command is ended, and that are left for the tables. The call has 600 in all.
PATIENCE_S = 15.0
LANES_OF_A_GPU = 12
ROW_LIMIT_S = 100
# Packages whose bytecode is made before where an installation lacks it: without it each process imports for 10 s.
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "torch_geometric", "timm", "transformers", "accelerate", "peft", "triton"),
    *("pytorch_lightning", "lightning", "torchmetrics", "safetensors", "tokenizers", "huggingface_hub", "numpy"),
    *("sympy", "mpmath", "networkx", "jinja2", "PIL", "filelock", "fsspec", "typing_extensions"),
)
BYTECODE_S = 60.0


def main() -> None:
    """Run what was asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what was started too
    arguments = _arguments()
    arguments.out = arguments.out.resolve()
    arguments.skip_done = [path.resolve() for path in arguments.skip_done]
    arguments.out.mkdir(parents=True, exist_ok=True)
    environment = _environment(arguments)
    arguments.run(arguments, environment)


def run_exports(arguments: argparse.Namespace, environment: dict[str, str]) -> None:
    """Run the sessions and time their files; write exports.jsonl, exports.md and exports.tgz."""
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        lines, results = arguments.out / "exports.jsonl", Path(folder, "results")
        lines.touch()
        command = [sys.executable, str(BENCHMARK), "--exports", "--results", str(results), "--lines", str(lines)]
        command += ["--lanes", str(1 if arguments.small else _gpus()), "--expert-limit", str(EXPERT_LIMIT_S)]
        command += ["--budget", str(SMALL_BUDGET_S if arguments.small else BUDGET_S), "--timed", str(TIMED_S)]
        command += ["--within", str(arguments.left_s), *["--small"] * arguments.small]
        command += arguments.names or (SMALL_EXPORTED if arguments.small else EXPORTED)
        _run([*command, *_skipped(arguments)], environment, arguments.left_s, quiet=True)
        _keep(results, arguments.out / "exports.tgz")
    files = [*map(str, arguments.skip_done), str(lines)]
    table = [sys.executable, str(BENCHMARK), "--exports", "--table", *files]
    text = subprocess.run(table, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    (arguments.out / "exports.md").write_text(text, encoding="utf-8")
    print(text)


def run_loops(arguments: argparse.Namespace, environment: dict[str, str]) -> None:
    """Run the loops; write rows.jsonl, loops.md and loops.tgz."""
    lanes = 2 if arguments.small else LANES_OF_A_GPU * _gpus()
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.loops", "--quiet", "--out", str(arguments.out), "--logs", folder]
        command += ["--lanes", str(lanes), "--within", str(arguments.left_s), "--row-limit", str(ROW_LIMIT_S)]
        command += ["--eager", "--device", "cpu"] if arguments.small else ["--every", "--device", "cuda"]
        command += arguments.names or (SMALL_LOOPS if arguments.small else ())
        one_core = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        _run([*command, *_skipped(arguments)], {**environment, **one_core}, arguments.left_s)
        _keep(Path(folder), arguments.out / "loops.tgz", endings=(".log",))


def _skipped(arguments: argparse.Namespace) -> list[str]:
    return ["--skip-done", *map(str, arguments.skip_done)] if arguments.skip_done else []


def _run(command: list[str], environment: dict[str, str], within_s: float, *, quiet: bool = False) -> None:
    """Run a command, and end it where it goes on after its time; what it has written so far stays."""
    output = subprocess.DEVNULL if quiet else None
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, start_new_session=True)
    try:
        process.wait(within_s + PATIENCE_S)
    except subprocess.TimeoutExpired:
        print(f"ended after {within_s + PATIENCE_S:.0f} s", file=sys.stderr)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):  # what it started too
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _keep(folder: Path, archive: Path, endings: tuple[str, ...] = ()) -> None:
    """Pack what a command left, to be looked at where something is not understood."""
    with tarfile.open(archive, "w:gz") as packed:
        for file in sorted(folder.glob("*")):
            if file.is_file() and (not endings or file.suffix in endings):
                packed.add(file, file.name)


def _gpus() -> int:
    """How many GPUs there are, by the driver's own tool: nothing here starts CUDA."""
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    return len(listed.stdout.splitlines())


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """The environment of what is run: the checkout is found, and bytecode is kept where the installation has none."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if environment.pop("PYTHONDONTWRITEBYTECODE", None):
        environment["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), "campaign-bytecode"))
        found = [spec for name in PACKAGES if (spec := importlib.util.find_spec(name))]
        folders = [place for spec in found for place in spec.submodule_search_locations or ()]
        command = [sys.executable, "-m", "compileall", "-q", "-j", "0", *folders]
        _run(command, environment, BYTECODE_S - PATIENCE_S, quiet=True)
        print(f"bytecode after {time.monotonic() - arguments.started:.0f} s", file=sys.stderr)
    arguments.left_s = max(1.0, arguments.within - (time.monotonic() - arguments.started))
    return environment


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(started=time.monotonic())
    commands = parser.add_subparsers(required=True, metavar="exports|loops")
    for name, run in (("exports", run_exports), ("loops", run_loops)):
        command = commands.add_parser(name, help=(run.__doc__ or "").partition(";")[0])
        command.set_defaults(run=run)
        command.add_argument("names", nargs="*", help="workloads or loops; those of the campaign without")
        command.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the results")
        command.add_argument("--within", type=float, default=555.0, metavar="S", help="seconds for all (555)")
        command.add_argument("--skip-done", type=Path, nargs="+", default=[], metavar="FILE", help="go on after these")
        command.add_argument("--small", action="store_true", help="small, to try this on a machine without a GPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
