"""Parameter groups of an optimizer: their options go by number, so a restore looks whether their parameters do too."""

import json

import ckptd
import pytest
import torch
from ckptd import names
from ckptd.state import State
from memory_image import Image, _FromMemory, _View
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore


def net():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def named(module, *wanted):
    """Its parameters of these names, or of all others but them."""
    return [parameter for name, parameter in module.named_parameters() if name in wanted]


BIASES = ("0.bias", "1.bias")
WEIGHTS = ("0.weight", "1.weight")


def state(*groups, model=None, wrap=lambda module: module):
    """A model and its optimizer, whose groups hold the parameters of these names; each decays differently."""
    model = model or net()
    made = [{"params": named(model, *group), "weight_decay": index / 10} for index, group in enumerate(groups)]
    optimizer = torch.optim.AdamW(made)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": wrap(model), "optim": optimizer}


def decays(made):
    return [group["weight_decay"] for group in made["optim"].param_groups]


def test_groups_in_another_order_are_named():
    image, other = Image(state(WEIGHTS, BIASES)), state(BIASES, WEIGHTS)
    with pytest.raises(ckptd.LayoutMismatch) as caught:
        image.restore(other)
    assert "optim: 0.bias is in parameter group 0 here, in group 1 in the checkpoint" in str(caught.value)
    assert str(caught.value).count("parameter group") == 1, "the first one is enough"


def test_a_parameter_in_another_group_is_named():
    image, other = Image(state((*WEIGHTS, "1.bias"), ("0.bias",))), state(WEIGHTS, BIASES)
    with pytest.raises(ckptd.LayoutMismatch, match="optim: 1.bias is in parameter group 1 here, in group 0 in the check"):
        image.restore(other)
    notes = image.restore(other, strict=False)
    assert [note for note in notes if "1.bias is in parameter group 1 here, in group 0" in note]


@pytest.mark.parametrize(
    "saved, here, sentence",
    [
        ((WEIGHTS, BIASES), (WEIGHTS, ("0.bias",)), "optim: the 3 parameters that it updates are not the 4 of the"),
        ((("0.weight",),), (("0.bias",),), "optim: the 1 parameters that it updates are not the 1 of the"),
    ],
)
def test_other_parameters_are_told(saved, here, sentence):
    with pytest.raises(ckptd.LayoutMismatch, match=sentence):
        Image(state(*saved)).restore(state(*here))


def test_the_order_within_a_group_does_not_matter():
    other = state(WEIGHTS, BIASES)
    for group in other["optim"].param_groups:
        group["params"].reverse()
    Image(state(WEIGHTS, BIASES)).restore(other)
    assert decays(other) == [0.0, 0.1]


class Wrapper(nn.Module):
    """Adds a segment to all names, as FSDP, DDP, torch.compile and activation checkpointing do."""

    def __init__(self, attribute, module):
        super().__init__()
        setattr(self, attribute, module)


@pytest.mark.parametrize("attribute", sorted(names.WRAPPERS))
def test_wrapped_or_not_is_the_same(attribute):
    def inside(model):
        model[1] = Wrapper(attribute, model[1])
        return Wrapper(attribute, model)

    Image(state(WEIGHTS, BIASES, wrap=inside)).restore(state(WEIGHTS, BIASES))
    Image(state(WEIGHTS, BIASES)).restore(state(WEIGHTS, BIASES, wrap=inside))
    with pytest.raises(ckptd.LayoutMismatch, match="0.bias is in parameter group 0 here"):
        Image(state(WEIGHTS, BIASES, wrap=inside)).restore(state(BIASES, WEIGHTS))


def test_ddp_or_not_is_the_same():
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        Image(state(WEIGHTS, BIASES, wrap=DistributedDataParallel)).restore(state(WEIGHTS, BIASES))
        Image(state(WEIGHTS, BIASES)).restore(state(WEIGHTS, BIASES, wrap=DistributedDataParallel))
    finally:
        torch.distributed.destroy_process_group()


class Older(_FromMemory):
    """Reads a checkpoint that says nothing of who is in which group."""

    def _bytes(self, entry):
        document = json.loads(super()._bytes(entry))
        document["parts"]["optim"].pop("members", None)
        return json.dumps(document).encode()


def test_a_checkpoint_that_does_not_tell_is_restored_as_before():
    image, other = Image(state(WEIGHTS, BIASES)), state(BIASES, WEIGHTS)
    restorer = Older(image, State(other), False, True)
    assert restorer._try_load(_View()) == (0, None)
    assert decays(other) == [0.0, 0.1] and restorer._notes == []


def test_a_save_does_not_look_for_names():
    made = State(state(WEIGHTS, BIASES))
    table = made.survey()
    made.optimizers()[0].name_of = None
    assert '"members"' in table.refresh()
