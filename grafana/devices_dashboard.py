"""The dashboard *Devices*: the trainer's process and its GPUs: load, memory, power and health.

The process comes first, so that a laptop without a GPU sees no empty page; every GPU panel says why it is empty.
"""

from __future__ import annotations

from typing import Any

from grafana import no_data as reasons
from grafana.dashboard import Dashboard, Row
from grafana.panels import GREEN, GREY, ORANGE, RED, Panel, Target, lines, ribbon, stat, table
from grafana.queries import age, by, filled, increase, of_run, rate, select, values
from grafana.units import NUMBER, PER_SECOND, rate_unit_of, unit_of
from trainer.metrics.catalogue import gpus as gpu_metrics
from trainer.metrics.catalogue.metric import Metric
from trainer.metrics.catalogue.stages import STAGE_DEVICE
from trainer.metrics.catalogue.watching import PROCESS_CPU, PROCESS_MEMORY

_GPU = 'gpu=~"$gpu"'
_OF_GPU = "instance, gpu"
_NAME = "GPU {{gpu}} {{instance}}"
_EACH = "{{instance}}"


def _gauge(title: str, *metrics_: Metric, no_data: str = reasons.NO_GPU, note: str = "", **more: Any) -> Panel:
    """A curve for each GPU; with several metrics, the legend begins with the name of each."""
    first = metrics_[0]
    limits = {"min": 0, "max": 1} if first.unit == "ratio" else {"min": 0}
    targets = []
    for metric in metrics_:
        extra = [label for label in metric.labels if label != "gpu"]
        own = [f"{{{{{label}}}}}" for label in extra] or ([_short(metric)] if len(metrics_) > 1 else [])
        expression = by("max", ", ".join((_OF_GPU, *extra)), values(metric, _GPU))
        targets.append(Target(expression, " ".join((*own, _NAME))))
    return lines(title, *targets, shows=metrics_, unit=unit_of(first), note=note, no_data=no_data, **{**limits, **more})


def _short(metric: Metric) -> str:
    """`gpu_memory_used_bytes` as in a legend: `memory used`."""
    return metric.name.removeprefix("gpu_").removeprefix("allocator_").removesuffix(f"_{metric.unit}").replace("_", " ")


def _count(title: str, metric: Metric, no_data: str, width: int, bad: str = RED) -> Panel:
    """How much a counter rose in the selected time range, for each GPU."""
    target = Target(by("sum", _OF_GPU, increase(metric, _GPU)), _NAME, newest=True)
    return stat(
        title,
        target,
        shows=[metric],
        note="Within the selected time range.",
        unit=NUMBER,
        decimals=0,
        no_data=no_data,
        thresholds=((None, GREEN), (0.5, bad)),
        width=width,
    )


def _throttled() -> Panel:
    """A line for each GPU: 0 at full clock, else the number of the most severe reason."""
    by_severity = ("other", "power_cap", "thermal", "power_brake", "hardware")
    cases = " or ".join(
        f"{place} * {select(gpu_metrics.GPU_THROTTLED, f'reason={chr(34)}{reason}{chr(34)}', _GPU)}"
        for place, reason in enumerate(by_severity, start=1)
    )
    words = {
        0: ("full clock", GREEN),
        1: ("another reason", GREY),
        2: ("power cap", ORANGE),
        3: ("heat", RED),
        4: ("power brake", RED),
        5: ("hardware", RED),
    }
    target = Target(by("max", _OF_GPU, of_run(f"max by (job, instance, rank, gpu) ({cases})")), _NAME)
    return ribbon("Throttled by", target, shows=[gpu_metrics.GPU_THROTTLED], no_data=reasons.NO_GPU, words=words)


_SAMPLER = (("no figures", ORANGE), ("figures", GREEN))

_PROCESS = Row(
    "The trainer's process",
    [
        lines(
            "CPU",
            Target(by("sum", "instance", rate(PROCESS_CPU)), _EACH),
            shows=[PROCESS_CPU],
            axis="cores",
            unit=NUMBER,
            min=0,
            no_data=reasons.NO_RUN,
            width=12,
        ),
        lines(
            "Memory",
            Target(by("sum", "instance", values(PROCESS_MEMORY)), _EACH),
            shows=[PROCESS_MEMORY],
            unit=unit_of(PROCESS_MEMORY),
            min=0,
            no_data=reasons.NO_RUN,
            width=12,
        ),
    ],
)

_TRUST = Row(
    "Can the GPU figures be trusted?",
    [
        stat(
            "GPU figures",
            Target(by("min", "instance", values(gpu_metrics.GPU_SAMPLER_UP)), _EACH, newest=True),
            shows=[gpu_metrics.GPU_SAMPLER_UP],
            unit="none",
            words=dict(enumerate(_SAMPLER)),
            filled=True,
            no_data=reasons.NO_RUN,
            width=6,
        ),
        table(
            "GPU library",
            Target(values(gpu_metrics.GPU_BACKEND), newest=True, table=True),
            shows=[gpu_metrics.GPU_BACKEND],
            no_data=reasons.NO_RUN,
            columns={"instance": "instance", "backend": "library"},
            hidden=("Value", "job", "rank", "run_id"),
            width=6,
            height=4,
        ),
        lines(
            "Age of the figures",
            Target(by("max", "instance", age(gpu_metrics.GPU_SAMPLE_TIME)), _EACH),
            shows=[gpu_metrics.GPU_SAMPLE_TIME],
            note="Rises while the driver does not answer; --watch.gpu-seconds sets the interval.",
            unit=unit_of(gpu_metrics.GPU_SAMPLE_TIME),
            min=0,
            no_data=reasons.NO_GPU,
            width=6,
            height=4,
        ),
        lines(
            "Time per reading, failed readings",
            Target(by("max", "instance", values(gpu_metrics.GPU_SAMPLE_SECONDS)), "time {{instance}}"),
            Target(by("sum", "instance", rate(gpu_metrics.GPU_SAMPLE_ERRORS)), "failures per second {{instance}}"),
            shows=[gpu_metrics.GPU_SAMPLE_SECONDS, gpu_metrics.GPU_SAMPLE_ERRORS],
            unit=unit_of(gpu_metrics.GPU_SAMPLE_SECONDS),
            min=0,
            no_data=reasons.NO_GPU,
            width=6,
            height=4,
        ),
    ],
)


def _identities() -> str:
    """Identity of each GPU, and the stage that computes on it, if any."""
    info = of_run(select(gpu_metrics.GPU_INFO, _GPU))
    used = f"max by (job, instance, rank, gpu, stage) ({select(STAGE_DEVICE, _GPU)})"
    named = f"{used} * on (job, instance, rank, gpu) group_left (name, driver, uuid) {select(gpu_metrics.GPU_INFO, _GPU)}"
    return filled(f"{of_run(named)} or on (job, instance, rank, gpu) {info}", "stage")


_WORK = Row(
    "Are the GPUs busy?",
    [
        table(
            "GPUs, and the stages that compute on them",
            Target(_identities(), newest=True, table=True),
            shows=[gpu_metrics.GPU_INFO, STAGE_DEVICE],
            columns={"instance": "instance", "gpu": "GPU", "name": "name", "stage": "stage", "driver": "driver", "uuid": "uuid"},
            hidden=("Value", "__name__", "job", "rank", "run_id"),
            no_data=reasons.NO_GPU,
        ),
        _gauge("Kernel active", gpu_metrics.GPU_KERNEL_ACTIVE),
        _gauge("SM activity", gpu_metrics.GPU_SM_ACTIVE, no_data=reasons.NO_HOPPER),
        _gauge("SM occupancy", gpu_metrics.GPU_SM_OCCUPANCY, no_data=reasons.NO_HOPPER),
        _gauge("Tensor core activity", gpu_metrics.GPU_TENSOR_ACTIVE, no_data=reasons.NO_HOPPER, width=6),
        _gauge("Memory bandwidth", gpu_metrics.GPU_DRAM_ACTIVE, no_data=reasons.NO_HOPPER, width=6),
        _gauge("PCIe traffic", gpu_metrics.GPU_PCIE, width=6),
        _gauge("NVLink traffic", gpu_metrics.GPU_NVLINK, no_data=reasons.NO_LINK, width=6),
    ],
)

_MEMORY = Row(
    "Does it fit?",
    [
        _gauge("GPU memory", gpu_metrics.GPU_MEMORY_USED, gpu_metrics.GPU_MEMORY_TOTAL, gpu_metrics.GPU_MEMORY_RESERVED, width=12),
        _gauge(
            "Torch's allocator",
            gpu_metrics.ALLOCATED,
            gpu_metrics.RESERVED,
            gpu_metrics.ALLOCATED_PEAK,
            no_data=reasons.NO_ALLOCATOR,
            width=12,
        ),
        _count("Allocator retries", gpu_metrics.ALLOCATOR_RETRIES, reasons.NO_ALLOCATOR, 12, bad=ORANGE),
        _count("Out of memory", gpu_metrics.ALLOCATOR_OOMS, reasons.NO_ALLOCATOR, 12),
    ],
)

_HEALTH = Row(
    "Power, clocks, health",
    [
        _throttled(),
        _gauge("Power", gpu_metrics.GPU_POWER, gpu_metrics.GPU_POWER_LIMIT),
        lines(
            "Mean power, from the energy counter",
            Target(by("max", _OF_GPU, rate(gpu_metrics.GPU_ENERGY, _GPU)), _NAME),
            shows=[gpu_metrics.GPU_ENERGY],
            unit=rate_unit_of(gpu_metrics.GPU_ENERGY),
            min=0,
            no_data=reasons.NO_GPU,
        ),
        stat(
            "Energy",
            Target(by("max", _OF_GPU, increase(gpu_metrics.GPU_ENERGY, _GPU)), _NAME, newest=True),
            shows=[gpu_metrics.GPU_ENERGY],
            note="Within the selected time range.",
            unit=unit_of(gpu_metrics.GPU_ENERGY),
            no_data=reasons.NO_GPU,
            width=8,
            height=8,
        ),
        _gauge("Temperature", gpu_metrics.GPU_TEMPERATURE),
        _gauge("Clocks", gpu_metrics.GPU_CLOCK),
        lines(
            "XID errors per second",
            Target(by("sum", _OF_GPU, rate(gpu_metrics.GPU_XIDS, _GPU)), _NAME),
            shows=[gpu_metrics.GPU_XIDS],
            unit=PER_SECOND,
            min=0,
            no_data=reasons.NO_GPU,
        ),
        _count("XID errors", gpu_metrics.GPU_XIDS, reasons.NO_GPU, 8),
        stat(
            "Latest XID",
            Target(by("max", _OF_GPU, f"({values(gpu_metrics.GPU_XID_CODE, _GPU)}) > 0"), _NAME, newest=True),
            shows=[gpu_metrics.GPU_XID_CODE],
            note="NVIDIA's table of XID errors says what each code means.",
            unit="none",
            no_data=f"No XID error since the trainer started. {reasons.NO_GPU}",
            thresholds=((None, RED),),
            width=8,
        ),
        stat(
            "Time of the latest XID",
            Target(f"{by('max', _OF_GPU, f'({values(gpu_metrics.GPU_XID_TIME, _GPU)}) > 0')} * 1000", _NAME, newest=True),
            shows=[gpu_metrics.GPU_XID_TIME],
            unit="dateTimeFromNow",
            no_data=f"No XID error since the trainer started. {reasons.NO_GPU}",
            thresholds=((None, RED),),
            width=8,
        ),
    ],
)

DEVICES = Dashboard(
    uid="draftscope-devices",
    title="Draftscope: Devices",
    description="The trainer's process and its GPUs: load, memory, power and health.",
    rows=[_PROCESS, _TRUST, _WORK, _MEMORY, _HEALTH],
    choices=["gpu"],
)
