"""Two samples in, figures between them out."""

import pynvml
import pytest

from tests.support.fake_nvml import BUSY, MIB, FakeNvml
from trainer.gpus.gpm import LEAST_SECONDS, MOST_SECONDS, Gpm


class Bench:
    def __init__(self, mig: int | None = None) -> None:
        self.fake, self.now = FakeNvml({**BUSY, "gpm": dict(BUSY["gpm"])}), 100.0
        self.gpm = Gpm(self.fake, self.fake.nvmlDeviceGetHandleByIndex(0), mig, lambda: self.now)

    def read(self, after: float) -> dict[str, float]:
        self.now += after
        return self.gpm.read()

    @property
    def known(self) -> dict[int, float]:
        return self.fake.gpus[0]["gpm"]


def test_the_first_sample_tells_nothing_and_the_second_all() -> None:
    bench = Bench()
    assert bench.gpm.supported()
    assert bench.read(0) == {}
    assert bench.read(2) == pytest.approx(
        {
            "sm_active_ratio": 0.915,
            "sm_occupancy_ratio": 0.3325,
            "tensor_active_ratio": 0.47,
            "dram_active_ratio": 0.625,
            "pcie_receive_bytes_per_second": 3200 * MIB,
            "pcie_transmit_bytes_per_second": 110 * MIB,
            "nvlink_receive_bytes_per_second": 20_000 * MIB,
            "nvlink_transmit_bytes_per_second": 19_000 * MIB,
        }
    )


def test_samples_too_near_each_other_give_the_figures_of_before() -> None:
    bench = Bench()
    bench.read(0)
    before = bench.read(2)
    bench.known[pynvml.NVML_GPM_METRIC_SM_UTIL] = 10.0
    asked = len(bench.fake.asked)
    assert bench.read(LEAST_SECONDS / 2) == before
    assert len(bench.fake.asked) == asked, "no sample is taken that nothing could be compared with"
    assert bench.read(LEAST_SECONDS)["sm_active_ratio"] == 0.1


def test_after_a_long_gap_it_begins_anew() -> None:
    bench = Bench()
    bench.read(0)
    assert bench.read(MOST_SECONDS + 1) == {}
    assert bench.read(2)["sm_active_ratio"] == 0.915
    assert len(bench.fake.samples) == 1


def test_a_metric_that_is_not_counted_is_left_out() -> None:
    bench = Bench()
    del bench.known[pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC]
    bench.known[pynvml.NVML_GPM_METRIC_SM_UTIL] = float("nan")
    bench.read(0)
    told = bench.read(2)
    assert {"nvlink_receive_bytes_per_second", "sm_active_ratio"} & told.keys() == set()
    assert told["dram_active_ratio"] == 0.625


@pytest.mark.parametrize("call", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_failure_is_raised_leaks_no_sample_and_passes(call: str) -> None:
    bench = Bench()
    bench.read(0)
    bench.fake.fail(pynvml.NVML_ERROR_UNKNOWN, call)
    with pytest.raises(pynvml.NVMLError):
        bench.read(2)
    assert len(bench.fake.samples) <= 1
    bench.fake.faults.clear()
    bench.read(2)
    assert bench.read(2)["sm_active_ratio"] == 0.915
    bench.gpm.close()
    bench.gpm.close()
    assert bench.fake.samples == {}


def test_of_a_mig_instance_its_own_samples_are_taken() -> None:
    bench = Bench(mig=4)
    bench.read(0)
    assert bench.read(2)["sm_active_ratio"] == 0.915
    assert bench.fake.mig_samples == [4, 4]
