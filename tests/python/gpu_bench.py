"""tests/gpu/bench_trainer.py with the host device (host_device.py) in place of the GPU: the child of a test."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))

import bench_trainer  # noqa: E402
import model  # noqa: E402
from host_device import Gpu, build_of_environment  # noqa: E402

gpu = Gpu(build_of_environment())


class Training(model.Training):
    """Its state is device memory, and no step begins before the stream is there."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        gpu.take(self.model)
        gpu.take(self.masters)

    def update(self):
        super().update()
        gpu.take_state(self.optimizer)

    def synchronize(self):
        gpu.sync()


class Bench(bench_trainer.Bench):
    def _open(self, path="push"):
        super()._open(path)
        gpu.updates_in_order()


if __name__ == "__main__":
    bench_trainer.Training = Training
    bench_trainer.serve(Bench())
