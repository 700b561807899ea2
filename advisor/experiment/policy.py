"""The constants of the search, each with its meaning, its unit and its source.

Gains are speed-up factors, shares are 0 to 1, and other numbers are counts. Expected gains only order the moves and end
the search; no reported figure depends on them.
"""

# Expected gain of the usual stack without compiling: the median of the ten workloads of tests/benchmarks.
STACK_GAIN = 1.9
# A whole stack with at least this expected gain comes before all other moves and starts even if it may end too late.
# Compiling usually gains 1.3 on a GPU. On a CPU it gains 1.15 and takes longer than all else (tests/gpu/RESULTS.md).
LARGE_GAIN = 1.25
# Largest share of the budget for a second run of the baseline before a stack with that gain.
BASELINE_SHARE = 0.1
# Smallest expected gain that is worth another trial; a simpler stack within its inverse counts as equally fast.
LEAST_GAIN = 1.003
# Value, as a gain, of measuring a figure for the report that cannot change the stack.
INFORMATION = 1.0005
# Value, as a gain, of checking the stack: in turn with the baseline, or without one of its settings.
# cudnn.benchmark alone can cost a fifth (ResNet-50 inference with a batch of 1: 0.44 and 0.37 ms).
PROOF = 1.02
# A smaller gain needs a second run, and no setting is left out while its interval reaches down to this. By chance, one
# of twenty settings that do nothing seems to gain 2 %.
SMALL_GAIN = 1.05
# On the stack, a setting that made no difference alone keeps this share of its expected gain.
UNCLEAR = 0.3
# Largest number of processes of the same settings, and of random draws before a result is refused. In simulated
# GraphSAGE steps with dropout, 7 % were refused after two draws, 1 % after three, 0.2 % after four.
MOST_RUNS = 4
# Largest share of the budget reserved for timing the stack in turn: two trials may take 20 s each.
RESERVE_SHARE = 0.4
# A stack with priority starts if at least this share of its expected duration is left.
START_SHARE = 0.5
# A run of the baseline before a compilation must leave this multiple of the compilation's expected duration. The guess
# before the first compilation is at most a fifth off for eleven models (tests/experiment/test_budget.py).
SAFE = 1.2
# Expected gain of not compiling on several GPUs, if no graph captures the step: 1.12 for a GPT on two H100s and 1.24 on
# four, each with a quarter of the batch (tests/gpu/RESULTS.md, "Several GPUs").
NOT_COMPILED = 1.15
# Share of the budget for the search on one GPU before the search on several. The stack is carried over, and torchrun
# takes several times as long to start each of about ten trials on several GPUs.
ONE_GPU = 0.5
# If two runs of the baseline differ by more than this, the baseline runs again, and the person is warned. A share.
MOST_APART = 0.1
