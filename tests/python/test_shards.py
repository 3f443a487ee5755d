"""DTensors and other tensors that wrap tensors: what is captured of them, where it lies, how it comes back.

One process stands for a rank of several (torch's fake process group); the matrix has real ones.
"""

import contextlib
import ctypes
import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ckptd import LayoutMismatch, _lib, shards
from ckptd.parts import Moved
from ckptd.state import State
from ckptd.table_view import table_view
from memory_image import Image
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor


@contextlib.contextmanager
def rank_of(rank, world):
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.fixture
def third_of_four():
    with rank_of(2, 4):
        yield init_device_mesh("cpu", (4,))


def on(mesh, tensor, *placements):
    return distribute_tensor(tensor, mesh, placements or [Shard(0)])


class Holder(torch.nn.Module):
    def __init__(self, mesh, rows=5, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.weight = torch.nn.Parameter(on(mesh, torch.randn(rows, 3)))
        self.bias = torch.nn.Parameter(on(mesh, torch.randn(3)))  # nothing of it on the last rank
        self.scale = torch.nn.Parameter(torch.randn(2))


def trained(mesh, seed=0, **options):
    holder = Holder(mesh, seed=seed)
    optimizer = torch.optim.AdamW(holder.parameters(), **options)
    for parameter in holder.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": holder, "optim": optimizer}


@pytest.mark.parametrize("shape", [(8, 6), (5, 3), (1, 7), (0, 2), (3,)])
@pytest.mark.parametrize("grid", [(4,), (2, 2), (3, 2)])
def test_places_are_those_of_torch(shape, grid):
    world = torch.Size(grid).numel()
    kinds = [Shard(dimension) for dimension in range(len(shape))] + [Replicate()]
    for rank in range(world):
        with rank_of(rank, world):
            mesh = init_device_mesh("cpu", grid)
            assert mesh.get_coordinate() == list(np.unravel_index(rank, grid))
            for placements in itertools.product(kinds, repeat=len(grid)):
                local, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
                tensor = DTensor.from_local(
                    torch.zeros(local), mesh, placements, run_check=False, shape=torch.Size(shape),
                    stride=torch.zeros(shape).stride(),
                )  # fmt: skip
                found = shards.place("x", tensor)
                assert found.whole == shape
                if torch.zeros(local).numel():  # an empty shard lies anywhere
                    assert found.offsets == tuple(offset), (placements, rank)
                assert all(o + n <= whole for o, n, whole in zip(found.offsets, local, shape))


@pytest.mark.parametrize("rows", [8, 6, 5, 1])
def test_fsdp_over_tensor_parallelism(rows):
    """The boxes of all ranks lie side by side: tensor parallelism cuts first, then FSDP what that left."""
    found = {}
    for rank in range(4):
        with rank_of(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2))
            data, tensor = mesh.get_coordinate()
            left = torch.arange(rows).chunk(2)[tensor:][:1]
            mine = left[0].chunk(2)[data:][:1] if left else ()
            local = mine[0] if mine else torch.arange(0)
            strided = _StridedShard(0, split_factor=2)
            held = DTensor.from_local(
                local, mesh, [strided, Shard(0)], run_check=False, shape=torch.Size([rows]), stride=(1,)
            )
            place = shards.place("x", held)
            found[place.offsets[0]] = found.get(place.offsets[0], ()) + tuple(local.tolist())
            assert all(place.offsets[0] + index == row for index, row in enumerate(local.tolist()))
            with pytest.raises(TypeError, match="no box"):
                shards.place("x", DTensor.from_local(local, mesh, [strided, Replicate()], run_check=False))
    assert sorted(row for rows_of in found.values() for row in rows_of) == list(range(rows))


def test_what_the_image_holds(third_of_four):
    state = trained(third_of_four)
    image = Image(state)
    column = image.column("model.weight")
    assert (column.shape, column.shard, column.eager) == ((1, 3), shards.Shard((4, 0), (5, 3)), False)
    assert image.column("model.bias").shard == shards.Shard((2,), (3,))
    assert image.column("optim.state.weight.exp_avg").shard == shards.Shard((4, 0), (5, 3))
    assert image.column("optim.state.weight.step").shard is None
    for stays, host in ((True, _lib.STAYS), (False, 0)):
        view, kept = table_view(image.table, 100, stays)
        given = (ctypes.c_uint8 * view.count).from_address(view.flags)
        assert list(given) == [host | (_lib.EAGER if column.eager else 0) for column in image.table.columns]
    assert view.shard_offsets and view.global_shapes
    address = state["model"].weight._local_tensor.data_ptr()
    assert int(image.table.addresses[image.table.columns.index(column)]) == address


def test_restore_into_shards(third_of_four):
    state = trained(third_of_four)
    image = Image(state)
    fresh = Holder(third_of_four, seed=1)
    other = torch.optim.AdamW(fresh.parameters())
    memory = fresh.weight._local_tensor.data_ptr()
    image.restore({"model": fresh, "optim": other})
    assert fresh.weight._local_tensor.data_ptr() == memory
    for mine, theirs in zip(fresh.parameters(), state["model"].parameters()):
        for key, value in state["optim"].state[theirs].items():
            made = other.state[mine][key]
            assert type(made) is type(value) and not made.requires_grad
            if isinstance(made, DTensor):
                assert (made.placements, made.device_mesh) == (mine.placements, mine.device_mesh)
                assert made.shape == value.shape and made.stride() == value.stride()
                made, value = made._local_tensor, value._local_tensor
            assert torch.equal(made, value)
    other.step()


def test_state_with_placements_of_its_own(third_of_four):
    state = trained(third_of_four)
    weight = state["model"].weight
    held = state["optim"].state[weight]
    held["whole"] = DTensor.from_local(torch.arange(6.0).reshape(2, 3), third_of_four, [Replicate()])
    held["plain"] = torch.arange(3.0)
    fresh = Holder(third_of_four, seed=1)
    other = torch.optim.AdamW(fresh.parameters())
    Image(state).restore({"model": fresh, "optim": other})
    made = other.state[fresh.weight]
    assert made["whole"].placements == (Replicate(),)
    assert torch.equal(made["whole"]._local_tensor, held["whole"]._local_tensor)
    assert not isinstance(made["plain"], DTensor) and torch.equal(made["plain"], held["plain"])


def test_another_layout_is_named(third_of_four):
    image = Image(trained(third_of_four))
    for rows, sentence in ((8, r"weight: F32 \[2, 3\] here, F32 \[1, 3\] in the checkpoint"), (3, "model.weight: ")):
        fresh = Holder(third_of_four, rows=rows)
        with pytest.raises(LayoutMismatch, match=sentence):
            image.restore({"model": fresh, "optim": torch.optim.AdamW(fresh.parameters())})


def test_state_of_a_shard_that_is_another_one_is_left_out(third_of_four):
    image, fresh = Image(trained(third_of_four)), Holder(third_of_four, rows=8)
    other = torch.optim.AdamW(fresh.parameters())
    notes = image.restore({"model": fresh, "optim": other}, strict=False)
    assert set(other.state) == {fresh.bias, fresh.scale}
    assert notes[-1] == "optim: the state of weight is left out, its shape is another one here" and len(notes) == 2


def test_the_same_shape_at_another_place_is_named(third_of_four):
    held = {"x": on(third_of_four, torch.zeros(4, 2))}
    image = Image({"held": held})
    dist.destroy_process_group()
    with rank_of(1, 4):
        moved = {"x": on(init_device_mesh("cpu", (4,)), torch.zeros(4, 2))}
        with pytest.raises(LayoutMismatch, match=r"held.x: the shard at \[1, 0\] here, at \[2, 0\] in the checkpoint"):
            image.restore({"held": moved})
    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())


def test_a_shard_that_is_not_there_cannot_be_made(third_of_four):
    image = Image({"held": {"x": on(third_of_four, torch.zeros(4, 2)), "n": 1}})
    with pytest.raises(LayoutMismatch, match="held.x: a tensor that wraps others in the checkpoint; make it before"):
        image.restore({"held": {"n": 1}})


def test_moves_are_seen(third_of_four):
    state = trained(third_of_four)
    table = State(state).survey()
    table.refresh()
    weight = state["model"].weight
    weight._local_tensor = weight._local_tensor.clone()
    with pytest.raises(Moved, match="moved"):
        table.refresh()
    table = State(state).survey()
    state["model"].weight = torch.nn.Parameter(torch.zeros(1, 3))
    with pytest.raises(Moved, match="replaced"):
        table.refresh()


def test_what_cannot_be_placed_is_refused(third_of_four):
    partial = DTensor.from_local(torch.ones(3), third_of_four, [Partial()])
    with pytest.raises(TypeError, match=r"held.x: its placement P.* is no box of the whole tensor; redistribute it"):
        State({"held": {"x": partial}}).survey()
    uneven = on(third_of_four, torch.zeros(8))
    uneven._local_tensor = torch.ones(3)
    with pytest.raises(TypeError, match=r"held.x: its local shape is \[3\] where its placements give \[2\]"):
        State({"held": {"x": uneven}}).survey()
    nested = on(third_of_four, torch.zeros(8))
    nested._local_tensor = TwoTensor(torch.zeros(2), torch.zeros(2))
    with pytest.raises(TypeError, match="held.x: a DTensor of TwoTensors cannot be saved"):
        State({"held": {"x": nested}}).survey()


def test_a_restart_of_ddp_over_more_than_two_ranks_is_told(third_of_four):
    wrap = torch.nn.parallel.DistributedDataParallel
    model = wrap(torch.nn.Linear(3, 3))
    (sentence,) = State({"net": model}).after_restart()
    assert sentence.startswith("net: DistributedDataParallel over 4 ranks sorts its buckets after its first backward")
    model(torch.zeros(2, 3))  # and a backward pass
    assert State({"net": model}).after_restart() == []
    assert State({"net": wrap(torch.nn.Linear(3, 3), find_unused_parameters=True)}).after_restart() == []
    assert State({"net": wrap(torch.nn.Linear(3, 3), process_group=dist.new_group([2, 3]))}).after_restart() == []


class Gives:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"x": self.value}

    def load_state_dict(self, state):
        self.value = state["x"]


def test_an_object_that_gives_dtensors_is_refused(third_of_four):
    with pytest.raises(TypeError, match=r"o.x: the state_dict\(\) of a Gives gives a DTensor, which cannot be made"):
        State({"o": Gives(on(third_of_four, torch.zeros(4)))}).survey()


def test_wrappers_are_captured_flattened():
    pair = TwoTensor(torch.randn(2, 3), torch.randn(2, 3))
    inner = TwoTensor(TwoTensor(torch.ones(2), torch.zeros(2)), torch.full((2,), 3.0))
    image = Image({"held": {"pair": pair, "nest": inner, "n": 5}})
    assert {"held.pair.a", "held.pair.b", "held.nest.a.a", "held.nest.a.b", "held.nest.b"} <= image.names()
    other = {"pair": TwoTensor(torch.zeros(2, 3), torch.zeros(2, 3)), "n": 0}
    other["nest"] = TwoTensor(TwoTensor(torch.zeros(2), torch.ones(2)), torch.zeros(2))
    memory, same = other["pair"].a, other["pair"]
    image.restore({"held": other})
    assert other["pair"] is same and other["pair"].a is memory and other["n"] == 5
    assert torch.equal(same.a, pair.a) and torch.equal(same.b, pair.b)
    assert torch.equal(other["nest"].a.b, torch.zeros(2))


def test_a_wrapper_as_parameter():
    linear = torch.nn.Linear(3, 2)
    linear.weight = torch.nn.Parameter(TwoTensor(torch.randn(2, 3), torch.randn(2, 3)))
    image = Image({"m": linear})
    again = torch.nn.Linear(3, 2)
    again.weight = torch.nn.Parameter(TwoTensor(torch.zeros(2, 3), torch.zeros(2, 3)))
    image.restore({"m": again})
    assert torch.equal(again.weight.b, linear.weight.b)


def test_wrappers_in_optimizer_state_are_refused():
    linear = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    optimizer.state[linear.weight]["x"] = TwoTensor(torch.zeros(2), torch.zeros(2))
    with pytest.raises(TypeError, match="optim.state.weight.x: a TwoTensor in the state of an optimizer cannot"):
        State({"m": linear, "optim": optimizer}).survey()
