"""Whether a process that compiles on the same GPU changes what another one times: three kinds of steps, by turns.

    python tests/gpu/compiling_beside.py

Each line has the median and the least of the milliseconds of a step: one that is bound by the host (Swin-T inference
at batch 1), the same in a CUDA graph, and one that is bound by the device (ResNet-50 training in bfloat16).
"""

import contextlib
import multiprocessing
import statistics
import time

SECONDS, STEPS, TURNS = 1.2, 10, 6


def compile_a_model(begins):
    """Compile Inception v3 in training, without what a cache may have of it; takes more than a minute."""
    import torch
    import torchvision

    torch._inductor.config.force_disable_caches = True
    model = torchvision.models.inception_v3(init_weights=False, aux_logits=False).cuda()
    batch, labels = torch.randn(64, 3, 299, 299, device="cuda"), torch.randint(1000, (64,), device="cuda")
    begins.set()
    torch.compile(lambda: torch.nn.functional.cross_entropy(model(batch), labels))().backward()


def steps():
    """The steps by the name of their kind."""
    import torch
    import torchvision

    swin, image = torchvision.models.swin_t().eval().cuda(), torch.randn(1, 3, 224, 224, device="cuda")
    resnet, images = torchvision.models.resnet50().cuda(), torch.randn(64, 3, 224, 224, device="cuda")
    labels, optimizer = torch.randint(1000, (64,), device="cuda"), torch.optim.SGD(resnet.parameters(), lr=0.1)

    def infer():
        with torch.no_grad():
            swin(image)

    def train():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(resnet(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(STEPS):
        infer()
        train()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        swin(image)
    return {"host": infer, "graph": graph.replay, "device": train}


def step_ms(step):
    """The milliseconds of a step, again and again for some seconds."""
    import torch

    times, ends = [], time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / STEPS * 1e3)
    return times


@contextlib.contextmanager
def compiling():
    """Something compiles in this context."""
    begins = multiprocessing.Event()
    process = multiprocessing.Process(target=compile_a_model, args=(begins,))
    process.start()
    begins.wait()
    yield
    print("still compiling" if process.is_alive() else "done before the last line")
    process.kill()
    process.join()


def main():
    timed = steps()
    for label, context in (("alone", contextlib.nullcontext), ("beside", compiling), ("alone", contextlib.nullcontext)):
        with context():
            for _ in range(TURNS):
                times = {kind: step_ms(step) for kind, step in timed.items()}
                found = [f"{kind} {statistics.median(ms):.3f} (least {min(ms):.3f})" for kind, ms in times.items()]
                print(f"{label:7}", *found, flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
