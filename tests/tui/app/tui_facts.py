"""The facts of the app's made-up sessions: those of the other rooms' sample, with names that look like markup."""

from dataclasses import replace

from facts import GIB, GPU_UUID
from sample_parts import SAMPLE_FINDINGS, detailed_profile, h200_machine, resnet_facts

from advisor.experiment import events
from advisor.records import GpuReading, HostSample, OperatorRow, SyncPlace
from advisor.tui.widgets.gauges import Reading

READING = Reading(
    (GpuReading(GPU_UUID, 97, 9 * GIB, 140 * GIB, 51, 486.0, 1980),), HostSample(35.0, 12 * GIB, 128 * GIB)
)
HARDWARE = h200_machine()
RESNET = resnet_facts(HARDWARE).workload
NOTE = "the weights are random: no [pretrained] weights were asked for"
RESNET = replace(RESNET, current={**RESNET.current, "data.num_workers": 0}, notes=(NOTE,))
READS_LOSS = "total += loss.item()  # [red]"
PROFILE = replace(
    detailed_profile(),
    operators=(
        OperatorRow("aten::cudnn_convolution", 53, 2.1, 8.9),
        OperatorRow("aten::convolution_backward", 53, 3.4, 15.2),
        OperatorRow("aten::native_batch_norm_backward", 53, 1.2, 3.1),
        OperatorRow("aten::copy_", 4.5, 0.05, 1.1),
    ),
    trace_path="/nowhere/baseline-trace.json.gz",
    sync_places=(SyncPlace("train.py", 41, READS_LOSS, 1.0, 19.4), SyncPlace("", 0, "the backward pass", 1.0, None)),
)
FOUND = (replace(SAMPLE_FINDINGS[1], text=READS_LOSS), replace(SAMPLE_FINDINGS[0], recipe="batch_size"))
READ = events.SourceRead(("train.py",), FOUND, ("deploy.ipynb could not be read: no notebook",))
