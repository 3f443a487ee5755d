"""What a Lightning Trainer keeps beside its tensors, as one object of `state`.

Small tensors (metrics, scores of callbacks) are stored as bytes among the plain values: they come and go, and a tensor
that was not there at the last save would make a new layout.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from itertools import chain
from typing import Any

import torch

from . import dtypes, rng
from .lightning_base import pl
from .memory import identity

_SMALL = 1024  # elements
_MARK = "__ckptd_small_tensor__"
_OWN = "__ckptd_tensor_of_the_module__"
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_LOADERS = "combined_loader"


class TrainerState:
    """`position`: where the training loader of a resumed run begins. `batch`: those of the epoch that are done."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self.trainer = trainer
        self.module = module
        self.loader: Any = None
        self.batch = 0
        self.position: dict[str, Any] | None = None
        self._saved: dict[str, Any] = {}
        self._sums: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and larger tensors of hooks."""
        trainer = self.trainer
        loops = copy.deepcopy(trainer.fit_loop.state_dict())
        loops["state_dict"].pop(_LOADERS, None)  # the position is ours
        epoch = trainer.fit_loop.epoch_progress.current.processed
        found = {
            "loops": loops,
            "position": None if self.loader is None else self.loader.position(self.batch, epoch),
            "callbacks": [[item.state_key, item.state_dict()] for item in trainer.callbacks],
            **self._of_hooks(),
            "data": {} if trainer.datamodule is None else trainer.datamodule.state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
            "metrics": {name: getattr(trainer._logger_connector, name, {}) for name in _METRICS},
            "sums": self._begun_sums(),
        }
        return packed(found)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """What must be there when training begins; the rest comes with `settle`."""
        self._saved = unpacked(saved)
        self.position = self._saved["position"]
        self._load_callbacks()
        self._give_to_hooks(self._saved["module"], self._saved.get("removed", ()))
        if self.trainer.datamodule is not None:
            self.trainer.datamodule.load_state_dict(self._saved["data"])
        if self._saved["precision"]:
            self.trainer.precision_plugin.load_state_dict(self._saved["precision"])
        self.trainer.fit_loop.load_state_dict(copy.deepcopy(self._saved["loops"]))

    def settle(self) -> None:
        """The run is at the call in which `state_dict` was asked for: everything becomes what it was."""
        fit_loop = self.trainer.fit_loop
        fit_loop.load_state_dict(copy.deepcopy(self._saved["loops"]))
        _forget_restart(fit_loop)
        for name, values in self._saved["metrics"].items():
            getattr(self.trainer._logger_connector, name, {}).update(values)
        self._sums = self._saved["sums"]
        self._saved, self.position = {}, None

    def _load_callbacks(self) -> None:
        found = [item.state_key for item in self.trainer.callbacks]
        if found != [key for key, _ in self._saved["callbacks"]]:
            saved = [key for key, _ in self._saved["callbacks"]]
            raise ValueError(f"the callbacks were {saved}, here they are {found}")
        for item, (_, state) in zip(self.trainer.callbacks, self._saved["callbacks"]):
            if state:
                item.load_state_dict(copy.deepcopy(state))

    # ---- hooks of the user

    def _module_hook(self, hook: str) -> list[Any]:
        """The module's `hook`, a callable with a checkpoint as its argument, if it overrides it."""
        is_own = getattr(type(self.module), hook) is not getattr(pl.LightningModule, hook)
        return [getattr(self.module, hook)] if is_own else []

    def _callback_hooks(self, hook: str) -> list[Any]:
        """The same of the callbacks."""
        trainer, module = self.trainer, self.module
        return [
            lambda checkpoint, item=item: getattr(item, hook)(trainer, module, checkpoint)
            for item in trainer.callbacks
            if getattr(type(item), hook) is not getattr(pl.Callback, hook)
        ]

    def _checkpoint(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "epoch": trainer.current_epoch, "global_step": trainer.global_step, "state_dict": self.module.state_dict(),
            "pytorch-lightning_version": pl.__version__, "loops": {}, "callbacks": {}, "optimizer_states": [],
            "lr_schedulers": [],
        }  # fmt: skip

    def _of_hooks(self) -> dict[str, Any]:
        """`module`: what `on_save_checkpoint` adds to a checkpoint and, where an `on_load_checkpoint` may look at it,
        what it replaces or changes. `removed`: keys that it takes away."""
        hooks = self._callback_hooks("on_save_checkpoint") + self._module_hook("on_save_checkpoint")  # as Lightning
        if not hooks:
            return {"module": {}}
        given = self._checkpoint()
        before = {key: _contents(value) for key, value in given.items()}
        own = {identity(tensor): name for name, tensor in self._own_tensors(given).items()}
        checkpoint = dict(given)
        for hook in hooks:
            hook(checkpoint)
        looked_at = self._module_hook("on_load_checkpoint") + self._callback_hooks("on_load_checkpoint")
        kept = {
            key: value
            for key, value in checkpoint.items()
            if key not in given or (looked_at and not _is_same(value, given[key], before[key]))
        }
        return {"module": _by_name(kept, own), "removed": [key for key in given if key not in checkpoint]}

    def _give_to_hooks(self, kept: dict[str, Any], removed: list[str]) -> None:
        hooks = self._module_hook("on_load_checkpoint") + self._callback_hooks("on_load_checkpoint")
        if not hooks:
            return
        checkpoint = self._checkpoint()
        checkpoint.update(_from_names(kept, self._own_tensors(checkpoint)))
        for key in removed:
            del checkpoint[key]
        for hook in hooks:
            hook(checkpoint)

    def _own_tensors(self, checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Tensors of the module by name, which are saved with it and restored before anything here."""
        held = chain(self.module.named_parameters(), self.module.named_buffers())
        return {name: tensor for name, tensor in held if name in checkpoint["state_dict"] and _is_plain(tensor)}

    # ---- self.log(..., on_epoch=True)

    def _begun_sums(self) -> dict[str, Any]:
        """Sums of the running epoch by key: [value, size of the batches or None]."""
        results = self.trainer.fit_loop.epoch_loop._results
        return {
            key: [metric.value, getattr(metric, "cumulated_batch_size", None)]
            for key, metric in results.items()
            if metric.is_tensor and metric.meta.on_epoch and metric.update_called
        }

    def merge_sums(self) -> None:
        """Adds what was summed before the restart to sums that have begun again."""
        results = self.trainer.fit_loop.epoch_loop._results
        for key in [key for key in self._sums if key in results]:
            metric, (value, size) = results[key], self._sums.pop(key)
            if metric.meta.is_max_reduction or metric.meta.is_min_reduction:
                metric.value = metric.meta.reduce_fx(value, metric.value)
            else:
                metric.value = value + metric.value
            if size is not None:
                metric.cumulated_batch_size = size + metric.cumulated_batch_size


def _forget_restart(loop: Any) -> None:
    """The loop, and those inside it, are no longer resuming."""
    loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    loop.reset_restart_stage()
    for inner in vars(loop).values():
        if hasattr(inner, "reset_restart_stage"):
            _forget_restart(inner)


def _contents(value: Any) -> list[tuple[Any, Any]]:
    """What a dict or a list holds; nothing for other values."""
    return list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())


def _is_same(value: Any, given: Any, before: list[tuple[Any, Any]]) -> bool:
    """Whether a value of a checkpoint is the one that was given, and holds what it held `before`."""
    now = _contents(value)
    same = all(key == old_key and item is old for (key, item), (old_key, old) in zip(now, before))
    return value is given and len(now) == len(before) and same


def _is_plain(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided


def _by_name(value: Any, own: dict[Any, str]) -> Any:
    """`value` with names for tensors of the module: `own` has them by identity."""
    if _is_plain(value) and identity(value) in own:
        return {_OWN: own[identity(value)]}
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _by_name(item, own)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_by_name(item, own) for item in value)
    return value


def _from_names(value: Any, own: dict[str, torch.Tensor]) -> Any:
    """Inverse of `_by_name`; tensors are copies on the CPU, as those of a checkpoint."""
    if type(value) is dict and set(value) == {_OWN}:
        return own[value[_OWN]].detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _from_names(item, own)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_from_names(item, own) for item in value)
    return value


def packed(value: Any) -> Any:
    """`value` with small tensors as bytes."""
    if isinstance(value, torch.Tensor) and value.numel() <= _SMALL and not value.is_sparse:
        plain = value.detach().cpu().contiguous()
        data = rng.tensor_bytes(plain.reshape(-1).view(torch.uint8)) if plain.numel() else b""
        return {_MARK: (dtypes.string_of(plain, "a metric"), tuple(plain.shape), str(value.device), data)}
    if type(value) is dict:
        return {key: packed(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(packed, value))
    return value


def unpacked(value: Any) -> Any:
    """Inverse of `packed`."""
    if type(value) is dict:
        if set(value) == {_MARK}:
            dtype, shape, device, data = value[_MARK]
            flat = rng.tensor_of(data) if data else torch.empty(0, dtype=torch.uint8, device="cpu")
            return flat.view(dtypes.torch_of(dtype, "a metric")).reshape(shape).to(device)
        return {key: unpacked(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(unpacked, value))
    return value
