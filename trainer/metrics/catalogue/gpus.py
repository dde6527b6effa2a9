"""Metrics of GPUs and of torch's memory on them."""

from __future__ import annotations

from trainer.metrics.catalogue.metric import Metric

GPU_BACKENDS = ("nvml", "amdsmi", "none")
GPU_CLOCKS = ("sm", "memory")
GPU_DIRECTIONS = ("receive", "transmit")
GPU_THROTTLE_REASONS = ("power_cap", "power_brake", "thermal", "hardware", "other")
GPU_KERNEL_ACTIVE = Metric(
    name="gpu_kernel_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of the last sampling period in which at least one kernel was running: an upper bound of utilisation.",
    question="Is the GPU busy?",
)
GPU_SM_ACTIVE = Metric(
    name="gpu_sm_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of time that the streaming multiprocessors had work, averaged over all of them. Hopper and newer.",
    question="How much of the GPU is in use?",
)
GPU_SM_OCCUPANCY = Metric(
    name="gpu_sm_occupancy_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Resident warps as a share of what the streaming multiprocessors can hold. Hopper and newer.",
    question="Are the kernels large enough?",
)
GPU_TENSOR_ACTIVE = Metric(
    name="gpu_tensor_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of time that the tensor cores were active. Hopper and newer.",
    question="Does the arithmetic run on tensor cores?",
)
GPU_DRAM_ACTIVE = Metric(
    name="gpu_dram_active_ratio",
    kind="gauge",
    unit="ratio",
    labels=("gpu",),
    help="Share of the memory bandwidth in use. Hopper and newer.",
    question="Is memory bandwidth the limit?",
)
GPU_MEMORY_USED = Metric(
    name="gpu_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory in use by all processes.",
    question="Is the GPU close to its memory limit?",
)
GPU_MEMORY_TOTAL = Metric(
    name="gpu_memory_total_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="Total GPU memory.",
    question="Is the GPU close to its memory limit?",
)
GPU_MEMORY_RESERVED = Metric(
    name="gpu_memory_reserved_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory that the driver reserves for itself.",
    question="Where is the rest of the memory?",
)
GPU_POWER = Metric(
    name="gpu_power_watts",
    kind="gauge",
    unit="watts",
    labels=("gpu",),
    help="Power draw.",
    question="Is the GPU working hard?",
)
GPU_POWER_LIMIT = Metric(
    name="gpu_power_limit_watts",
    kind="gauge",
    unit="watts",
    labels=("gpu",),
    help="Power limit above which the GPU lowers its clocks.",
    question="Is power the limit?",
)
GPU_ENERGY = Metric(
    name="gpu_energy_joules_total",
    kind="counter",
    unit="joules",
    labels=("gpu",),
    help="Energy used since the driver was loaded; its rate is the mean power.",
    question="How much energy does the run use?",
)
GPU_TEMPERATURE = Metric(
    name="gpu_temperature_celsius",
    kind="gauge",
    unit="celsius",
    labels=("gpu",),
    help="GPU temperature.",
    question="Is the GPU too hot?",
)
GPU_CLOCK = Metric(
    name="gpu_clock_hertz",
    kind="gauge",
    unit="hertz",
    labels=("gpu", "clock"),
    values=((), GPU_CLOCKS),
    help="Clock rate of the streaming multiprocessors (sm) and of the memory.",
    question="Is the GPU running at full clock?",
)
GPU_THROTTLED = Metric(
    name="gpu_throttled",
    kind="gauge",
    labels=("gpu", "reason"),
    values=((), GPU_THROTTLE_REASONS),
    help="1 while the GPU lowers its clocks for this reason, else 0.",
    question="Why is the GPU slower than it could be?",
)
GPU_PCIE = Metric(
    name="gpu_pcie_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    labels=("gpu", "direction"),
    values=((), GPU_DIRECTIONS),
    help="PCIe traffic, as seen from the GPU.",
    question="Is the link to the host the limit?",
)
GPU_NVLINK = Metric(
    name="gpu_nvlink_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    labels=("gpu", "direction"),
    values=((), GPU_DIRECTIONS),
    help="Traffic over all NVLinks of the GPU. Hopper and newer.",
    question="Is the link between GPUs the limit?",
)
GPU_XIDS = Metric(
    name="gpu_xid_errors_total",
    kind="counter",
    labels=("gpu",),
    help="Errors (XIDs) that the driver has reported for this GPU since this process started.",
    question="Is the GPU faulty?",
)
GPU_XID_CODE = Metric(
    name="gpu_xid_last_code",
    kind="gauge",
    labels=("gpu",),
    help="Code of the latest XID error, 0 if there was none.",
    question="What is wrong with the GPU?",
)
GPU_XID_TIME = Metric(
    name="gpu_xid_last_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    labels=("gpu",),
    help="Unix time of the latest XID error, 0 if there was none.",
    question="When did the GPU fail?",
)
GPU_INFO = Metric(
    name="gpu_info",
    kind="info",
    labels=("gpu", "uuid", "name", "driver"),
    help="Always 1; its labels identify a GPU.",
    question="Which GPU is this?",
)
ALLOCATED = Metric(
    name="gpu_allocator_allocated_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory held by tensors of this process, as counted by torch.",
    question="How much memory does training need?",
)
RESERVED = Metric(
    name="gpu_allocator_reserved_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="GPU memory that torch has reserved: tensors and cache.",
    question="How much of the memory is torch's cache?",
)
ALLOCATED_PEAK = Metric(
    name="gpu_allocator_peak_bytes",
    kind="gauge",
    unit="bytes",
    labels=("gpu",),
    help="Peak GPU memory held by tensors of this process.",
    question="How close did it come to its memory limit?",
)
ALLOCATOR_RETRIES = Metric(
    name="gpu_allocator_retries_total",
    kind="counter",
    labels=("gpu",),
    help="Times that torch emptied its cache to find free memory, which briefly stalls the GPU.",
    question="Is a lack of memory costing speed?",
)
ALLOCATOR_OOMS = Metric(
    name="gpu_allocator_out_of_memory_total",
    kind="counter",
    labels=("gpu",),
    help="Times that torch ran out of GPU memory.",
    question="Does work fail for lack of memory?",
)
GPU_SAMPLER_UP = Metric(
    name="gpu_sampler_up",
    kind="gauge",
    help="1 while GPU figures can be read; 0 if there is no GPU, its library fails or the run has ended. `/status` says why.",
    question="Can the GPU figures be trusted?",
)
GPU_BACKEND = Metric(
    name="gpu_backend_info",
    kind="info",
    labels=("backend",),
    values=(GPU_BACKENDS,),
    help="Always 1; names the library that the GPU figures come from.",
    question="Where do the GPU figures come from?",
)
GPU_SAMPLE_TIME = Metric(
    name="gpu_last_sample_timestamp_seconds",
    kind="gauge",
    unit="seconds",
    help="Unix time of the latest GPU figures, 0 before the first.",
    question="How old are the GPU figures?",
)
GPU_SAMPLE_SECONDS = Metric(
    name="gpu_sample_duration_seconds",
    kind="gauge",
    unit="seconds",
    help="Time that the latest reading of all GPUs took.",
    question="Is the driver slow to answer?",
)
GPU_SAMPLE_ERRORS = Metric(
    name="gpu_sample_errors_total",
    kind="counter",
    help="Readings of the GPUs that failed or timed out.",
    question="Can the GPU figures be trusted?",
)
