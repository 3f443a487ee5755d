"""torchsnapshot: a copy in the call, a thread of the trainer writes, nobody syncs."""

from __future__ import annotations

from torchsnapshot import Snapshot, StateDict

from .base import Adapter, Saving


class TorchSnapshot(Adapter):
    """Snapshot.async_take and restore."""

    distribution = "torchsnapshot"

    def save(self, updates: int) -> Saving:
        path = self.path(updates)
        pending = Snapshot.async_take(str(path), {"state": StateDict(**self.state.tensors)})
        return Saving(pending.wait, [path])

    def restore(self, updates: int) -> None:
        found = StateDict(**self.state.tensors)
        Snapshot(str(self.path(updates))).restore({"state": found})
        moved = [name for name, tensor in self.state.tensors.items() if found[name] is not tensor]
        if moved:
            self.copy_in(found)
