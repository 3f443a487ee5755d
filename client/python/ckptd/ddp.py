"""What a restart changes in DistributedDataParallel: the order in which gradients are summed, once."""

from __future__ import annotations

import torch


def unsorted_buckets(module: torch.nn.Module, path: str) -> list[str]:
    """A sentence for each DDP in `module` whose next gradients are summed in another order than without a restart.

    DDP sorts its buckets by the order of the gradients of its first backward pass. A sum of two numbers does not depend
    on their order, one of three does.
    """
    distributed = torch.nn.parallel.DistributedDataParallel
    return [
        f"{path}: DistributedDataParallel over {inner.process_group.size()} ranks sorts its buckets after its first "
        "backward pass, so sums of the first step from here may differ in their last bits from a run that was not "
        "interrupted; make a forward and a backward pass before restore(), or use find_unused_parameters=True"
        for inner in module.modules()
        if isinstance(inner, distributed)
        and inner.process_group.size() > 2
        and not inner.find_unused_parameters
        and not getattr(inner, "_lazy_init_ran", True)
    ]
