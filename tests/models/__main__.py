"""Loads what people type, runs one step of each with the batch that the machine was given, and prints the table.

python -m tests.models [FAMILY ...]

It needs the extra ``frameworks``, and no network.
"""

import argparse
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
CASES: dict[str, tuple[str, ...]] = {
    "timm": (
        "timm:resnet18",
        "timm:vit_tiny_patch16_224",
        "timm:vit_base_patch16_224",
        "timm:efficientnet_b0",
        "timm:convnext_tiny",
        "timm:mobilenetv3_small_100",
        "timm:swin_tiny_patch4_window7_224",
        "timm.models:resnet18",
    ),
    "torchvision: classification": (
        "torchvision:resnet50",
        "torchvision.models:resnet18",
        "torchvision:vit_b_16",
        "torchvision:inception_v3",
        "torchvision:mobilenet_v2",
        "torchvision:googlenet",
    ),
    "torchvision: detection, segmentation": (
        "torchvision:ssdlite320_mobilenet_v3_large",
        "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn",
        "torchvision:maskrcnn_resnet50_fpn --input 1x3x224x224",
        "torchvision:retinanet_resnet50_fpn --mode infer",
        "torchvision:fcos_resnet50_fpn",
        "torchvision:lraspp_mobilenet_v3_large",
        "torchvision:deeplabv3_mobilenet_v3_large",
    ),
    "torchvision: video, optical flow": (
        "torchvision:r3d_18",
        "torchvision:s3d",
        "torchvision:swin3d_t",
        "torchvision:raft_large",
        "torchvision:raft_small",
        "torchvision:raft_small --mode infer",
    ),
    "text": (
        "hf:gpt2 -- generate=16 n_layer=2",
        "hf:bert-base-uncased",
        "hf:distilbert-base-uncased",
        "hf:FacebookAI/roberta-base",
        "hf:gpt2",
        "hf:gpt2 --mode infer",
        "hf:google-t5/t5-small",
        "hf:facebook/bart-base -- encoder_layers=2 decoder_layers=2",
        "hf:meta-llama/Llama-3.2-1B -- num_hidden_layers=2 hidden_size=512 intermediate_size=1024",
        "hf:Qwen/Qwen2.5-0.5B -- num_hidden_layers=2 hidden_size=512 intermediate_size=1024",
        "hf:albert-base-v2 --mode infer",
        "hf:state-spaces/mamba-130m-hf -- num_hidden_layers=4",
        "hf:microsoft/deberta-v3-small",
        "hf:google/tapas-base",
    ),
    "sound": (
        "hf:openai/whisper-tiny",
        "hf:facebook/wav2vec2-base-960h",
        "hf:facebook/hubert-base-ls960 -- num_hidden_layers=2",
        "hf:MIT/audio-spectrogram-transformer -- num_hidden_layers=2",
        "hf:facebook/encodec_24khz",
        "hf:descript/dac_16khz",
    ),
    "images of Hugging Face": (
        "hf:google/vit-base-patch16-224 -- num_hidden_layers=4",
        "hf:microsoft/resnet-50",
        "hf:microsoft/swin-tiny-patch4-window7-224",
        "hf:nvidia/segformer-b0",
        "hf:openai/clip-vit-base-patch32",
        "hf:MCG-NJU/videomae-base -- num_hidden_layers=2",
        "hf:google/owlvit-base-patch32",
        "hf:Salesforce/blip-image-captioning-base",
        "hf:Intel/dpt-large -- num_hidden_layers=12",
        "hf:facebook/vit-mae-base",
    ),
    "series, documents and parts of Hugging Face": (
        "hf:ibm-granite/granite-timeseries-patchtst -- prediction_length=24",
        "hf:naver-clova-ix/donut-base",
        "hf:bros -- num_hidden_layers=2",
        "hf:qwen2_vl_vision -- depth=2",
    ),
    "graphs": ("objects.py:graph", "objects.py:attention_on_graph"),
    "Lightning, Trainer, Ultralytics, peft": (
        "objects.py:lightning_pair",
        "objects.py:lightning_alone",
        "objects.py:trainer",
        "objects.py:tiny_bert",
        "objects.py:bert_classifier",
        "objects.py:lora",
        "objects.py:yolo",
        "ultralytics:yolo11n-seg",
        "ultralytics:yolov8n-cls",
    ),
    "files and plain modules": (
        "FOLDER/net.pt2",
        "FOLDER/net.ts --input 2x3x32x32",
        "objects.py:net",
        "objects.py:pair",
        "objects.py:words",
    ),
}
HEADER = ("what is typed", "model", "mode", "batch", "failure")


def words_of(line: str, folder: str, *options: str) -> list[str]:
    """The words of a command line, with these options before the target's own arguments."""
    words = line.replace("FOLDER", folder).split()
    end = words.index("--") if "--" in words else len(words)
    return [*words[:end], *options, *words[end:]]


def row_of(line: str, folder: str) -> tuple[str, ...]:
    """One row of the table: the target loaded, and one step of it run."""
    from advisor.cli.commands.measure import parse
    from advisor.errors import AdvisorError
    from advisor.recipe import Components
    from advisor.recipe.plan import StepPlan
    from advisor.step.step import make_step
    from advisor.trial.timed_loop import set_mode
    from advisor.workloads.entrypoint import load_target
    from advisor.workloads.loop import describe

    typed = f"`perf-advisor {line.replace('FOLDER/', '')}`"
    os.chdir(HERE)
    request = parse(words_of(line, folder, "--device", "cpu"), (), "").request
    try:
        loop = load_target(request.target)
        set_mode(loop)
        plan = StepPlan(mode=loop.mode, device="cpu")
        components = Components(loop.model, loop.optimizer, loop.data, plan, own_step=loop.step)
        step = make_step(components, loop.loss)
        batch = loop.data if loop.loader is None else next(iter(loop.loader))
        started = time.perf_counter()
        step(batch)
        print(f"{time.perf_counter() - started:.1f} s", end=" ", flush=True)
    except AdvisorError as error:
        return typed, "", "", "", f"{error.message} {error.hint}"
    except Exception as error:
        return typed, "", "", "", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    shown = describe(batch)
    return typed, type(loop.model).__name__, str(loop.mode), shown, ""


def print_table(families: list[str]) -> None:
    """Print the rows of some families, each model in a process of its own, forked after the imports."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HERE / "objects.py"), folder], check=True)
        for name in ("torchvision", "timm", "transformers.trainer", "torch.utils.flop_counter", "advisor.trial.main"):
            importlib.import_module(name)
        for family in families:
            print(f"\n## {family}\n\n| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}")
            for line in CASES[family]:
                cells = (cell.replace("|", " ") for cell in _forked(line, folder))
                print(f"| {' | '.join(cells)} |", flush=True)


def _forked(line: str, folder: str) -> tuple[str, ...]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send(row_of(line, folder)))
    process.start()
    sender.close()
    try:
        row: tuple[str, ...] = receiver.recv()
    except EOFError:
        row = (f"`perf-advisor {line}`", "", "", "", f"its process ended with {process.exitcode}")
    process.join()
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=[])
    options = parser.parse_args()
    print_table([f for f in CASES if not options.families or any(word in f for word in options.families)])
