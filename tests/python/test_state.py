"""The table of a state: names, ties, lazy and eager, moves; and what comes back out of an image."""

import copy
import random
from collections import OrderedDict

import ckptd
import numpy as np
import pytest
import torch
from ckptd.parts import Moved
from ckptd.state import State
from memory_image import Image
from torch import nn


class Net(nn.Module):
    """Tied weights, BatchNorm buffers, a frozen layer and a buffer that state_dict() leaves out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.head(self.frozen(self.norm(self.embed(x))))


def trained(make=lambda p: torch.optim.AdamW(p, lr=0.01), net=None, steps=3):
    """A net and its optimizer after some steps."""
    net = net or Net()
    optimizer = make([p for p in net.parameters() if p.requires_grad])
    for _ in range(steps):
        train(net, optimizer)
    return net, optimizer


def train(net, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = net(torch.randint(7, (8,))).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def digest(net, optimizer):
    return [t.detach().clone() for t in net.state_dict().values()], copy.deepcopy(optimizer.state_dict())


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    elif isinstance(a, dict):
        assert set(a) == set(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    else:
        assert type(a) is type(b) and a == b


def test_names_flags_and_ties():
    net, optimizer = trained()
    image = Image({"model": torch.compile(nn.DataParallel(net)), "optim": optimizer})
    flags = {column.name: column.eager for column in image.table.columns}
    assert flags["model.embed.weight"] is False
    assert flags["optim.state.embed.weight.exp_avg"] is False
    assert flags["model.norm.running_mean"] and flags["model.norm.num_batches_tracked"] and flags["model.frozen.weight"]
    assert [(name, image.table.columns[i].name) for name, i in image.table.aliases] == [
        ("model.head.weight", "model.embed.weight")
    ]
    assert not any("cache" in name for name in flags)
    assert {c.eager for c in Image({"model": net, "optim": optimizer}, lazy="none").table.columns} == {True}


def test_marks_overrule_the_rule():
    net, optimizer = trained()
    ckptd.eager(net.embed)
    ckptd.lazy(net.frozen.weight)
    flags = {c.name: c.eager for c in State({"model": net, "optim": optimizer}).survey().columns}
    assert flags["model.embed.weight"] and not flags["model.frozen.weight"] and not flags["model.norm.weight"]
    with pytest.raises(TypeError, match="int"):
        ckptd.lazy(3)


def test_an_eager_view_makes_the_lazy_one_eager():
    weight = nn.Parameter(torch.zeros(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    flags = {c.name: c.eager for c in State({"w": weight, "optim": optimizer}).survey().columns}
    assert flags == {"w": False}
    flags = {
        c.name: c.eager
        for c in State({"w": weight, "row": {"x": weight.detach()[1:]}, "optim": optimizer}).survey().columns
    }
    assert flags == {"w": True, "row.x": True}


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3),
    "groups": lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.5}, {"params": p[1:], "weight_decay": 0.0}]),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("fresh", [True, False], ids=["no state yet", "state exists"])
def test_optimizer_round_trip(name, fresh):
    torch.manual_seed(0)
    net, optimizer = trained(OPTIMIZERS[name])
    image, expected = Image({"model": net, "optim": optimizer}), digest(net, optimizer)
    other_net, other = trained(OPTIMIZERS[name], steps=0 if fresh else 3)
    image.restore({"model": other_net, "optim": other})
    assert_same(digest(other_net, other), expected)
    assert other_net.head.weight is other_net.embed.weight
    for trainee in ((net, optimizer), (other_net, other)):  # and it goes on the same way
        torch.manual_seed(1)
        train(*trainee)
    assert_same(digest(other_net, other), digest(net, optimizer))


def test_state_newer_than_the_checkpoint_is_removed():
    net, optimizer = trained(steps=0)
    image = Image({"model": net, "optim": optimizer})
    train(net, optimizer)
    image.restore({"model": net, "optim": optimizer})
    assert dict(optimizer.state) == {}


def test_schedulers_generators_and_live_containers():
    torch.manual_seed(0)
    net, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2, 2])
    scheduler.step()
    generator = torch.Generator().manual_seed(3)
    live = {"best": (0.5, {1, 2}), "ema": {"w": torch.randn(3)}, "log": [1, [2.5]], "array": np.arange(4.0), 7: b"x"}
    state = {"model": net, "optim": optimizer, "sched": scheduler, "gen": generator, "live": live}
    image = Image(state, generators=True)
    draws = random.random(), np.random.rand(), torch.rand(1), torch.rand(1, generator=generator)
    expected = copy.deepcopy((scheduler.state_dict(), live))
    scheduler.step()
    array, ema = live["array"], live["ema"]["w"]
    live.clear()
    live.update({"ema": {"w": ema.zero_()}, "array": array, "log": [], "extra": 3})
    array[:] = 0
    image.restore(state, generators=True)
    assert_same(
        (scheduler.state_dict(), {k: v for k, v in live.items() if k != "array"}),
        (expected[0], {k: v for k, v in expected[1].items() if k != "array"}),
    )
    assert live["ema"]["w"] is ema and np.array_equal(array, np.arange(4.0)) and np.shares_memory(live["array"], array)
    again = random.random(), np.random.rand(), torch.rand(1), torch.rand(1, generator=generator)
    assert again == draws


VIEWS = {
    "transposed": lambda: torch.randn(3, 4).t(),
    "strided": lambda: torch.randn(8)[::2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 5),
    "windows": lambda: torch.randn(6).unfold(0, 3, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "0-dim": lambda: torch.tensor(2.5, dtype=torch.float64),
    "empty": lambda: torch.empty(0, 3),
    "bool": lambda: torch.tensor([True, False]),
    "bf16": lambda: torch.randn(5).bfloat16(),
    "fp8": lambda: torch.randn(5).to(torch.float8_e4m3fn),
    "uint16": lambda: torch.tensor([1, 2, 65535], dtype=torch.uint16),
    "slice of a larger one": lambda: torch.randn(10)[3:7],
}


def raw(tensor):
    return tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_dtypes(name):
    torch.manual_seed(0)
    tensor = VIEWS[name]()
    image, expected = Image({"x": {"t": tensor}}), raw(tensor)
    torch.manual_seed(1)
    target = VIEWS[name]()
    around = target.untyped_storage().nbytes()
    image.restore({"x": {"t": target}})
    assert raw(target) == expected and target.untyped_storage().nbytes() == around
    assert target.stride() == tensor.stride()


@pytest.mark.parametrize("name", VIEWS)
def test_a_default_device_of_torch_changes_nothing(name):
    tensor, target = VIEWS[name](), VIEWS[name]()
    with torch.device("meta"):
        Image({"x": {"t": tensor}}).restore({"x": {"t": target}})
    assert raw(target) == raw(tensor)


class Meter:
    """An object that makes new tensors at each state_dict()."""

    def __init__(self):
        self.total = torch.zeros(3)

    def state_dict(self):
        return OrderedDict(total=self.total.clone(), n=4)

    def load_state_dict(self, state):
        assert state["n"] == 4
        self.total = state["total"]


def test_objects():
    meter = Meter()
    meter.total += 2
    state = State({"meter": meter})
    table = state.survey()
    table.refresh()
    meter.total += 1
    table.refresh()  # other tensors each time are no move
    assert table.columns[0].staged and table.columns[0].eager
    other = Meter()
    Image({"meter": meter}).restore({"meter": other})
    assert other.total.tolist() == [3, 3, 3]


def test_moves_are_seen():
    net, optimizer = trained()
    moves = {
        "replaced parameter": lambda: setattr(net.frozen, "weight", nn.Parameter(torch.ones(4, 4), False)),
        "data": lambda: setattr(net.norm.bias, "data", torch.ones(4)),
        "to": lambda: net.double(),
        "load_state_dict": lambda: optimizer.load_state_dict(optimizer.state_dict()),
        "new buffer": lambda: net.register_buffer("more", torch.ones(1)),
        "new module": lambda: net.add_module("adapter", nn.Linear(1, 1)),
        "add_param_group": lambda: optimizer.add_param_group({"params": [net.adapter.weight, net.adapter.bias]}),
        "state grows": lambda: optimizer.state[net.adapter.weight].update(
            exp_avg=torch.zeros(1, 1, dtype=torch.double)
        ),
        "another object over the same memory": lambda: setattr(
            net.frozen, "weight", nn.Parameter(net.frozen.weight.data, False)
        ),
        "fewer elements at the same address": lambda: setattr(net.norm.bias, "data", net.norm.bias.data[:2]),
        "resized": lambda: net.more.resize_(2),
        "transposed in place": lambda: net.frozen.weight.t_(),
    }
    state = State({"model": net, "optim": optimizer})
    for name, move in moves.items():
        table = state.survey()
        table.refresh()
        move()
        with pytest.raises(Moved):
            table.refresh()
            pytest.fail(f"{name} was not seen")


def test_a_list_that_grew_is_seen():
    kept = [torch.ones(2)]
    table = State({"kept": kept}).survey()
    table.refresh()
    kept.append(torch.ones(3))
    with pytest.raises(Moved, match="added"):
        table.refresh()


def test_a_dict_of_tensors_made_anew_each_step_is_copied():
    ema = {"a": torch.zeros(2), "b": torch.zeros(3)}
    state = State({"ema": ema})
    registrations = 0
    table = state.survey()
    for _ in range(6):
        for key in ema:
            ema[key] = ema[key] + 1
        try:
            table.refresh()
        except Moved:
            registrations += 1
            table = state.survey()
            table.refresh()
    assert registrations == 2 and all(column.staged for column in table.columns)


@pytest.mark.parametrize(
    "make, path",
    [
        (lambda: {"lr": 0.1}, "lr: a float"),
        (lambda: [nn.Linear(1, 1), 3], "1: a int"),
        (lambda: {"t": (torch.zeros(1), "x")}, "t.1: a str"),
        (lambda: {"d": {"f": print}}, "d.f"),
        (lambda: {"c": torch.zeros(1, dtype=torch.complex128)}, "c: torch.complex128"),
        (lambda: {"s": {"x": torch.eye(2).to_sparse()}}, "s.x"),
        (lambda: {"m": nn.Linear(1, 1, device="meta")}, "m.weight"),
        (lambda: {"o": np.array([object()])}, "o: a NumPy"),
        (lambda: 3, "state: a int"),
        (lambda: {"optim": torch.optim.SGD([nn.Parameter(torch.zeros(1))])}, "optim: it updates"),
        (lambda: {"a": {"b.c": torch.zeros(1), "b": {"c": torch.ones(1)}}}, "a.b.c"),
        (lambda: {"__ckptd_x": torch.zeros(1)}, "reserved"),
    ],
    ids=range(12),
)
def test_refusals_name_the_path(make, path):
    with pytest.raises((TypeError, ValueError), match=path):
        Image(make())


def test_mismatches_are_named_and_nothing_is_written():
    net, optimizer = trained()
    image = Image({"model": net, "optim": optimizer})
    other, other_optimizer = trained()
    other.norm.register_buffer("running_mean", torch.zeros(5))
    other.frozen.to(torch.float64)
    other.add_module("more", nn.Linear(1, 1))
    before = digest(other, other_optimizer)
    with pytest.raises(ckptd.LayoutMismatch) as caught:
        image.restore({"model": other, "optim": other_optimizer})
    for text in (
        "model.norm.running_mean: F32 [5] here, F32 [4]",
        "model.frozen.weight: F64",
        "model.more.weight: not in the checkpoint",
    ):
        assert text in str(caught.value)
    assert_same(digest(other, other_optimizer), before)
    with pytest.raises(ckptd.LayoutMismatch, match="model.embed.weight: in the checkpoint, not here"):
        image.restore({"model": nn.Linear(1, 1)})
    with pytest.raises(ckptd.LayoutMismatch, match="sched: nothing under this key"):
        image.restore({"model": net, "optim": optimizer, "sched": torch.optim.lr_scheduler.ConstantLR(optimizer)})


def test_not_strict_restores_what_fits():
    net, optimizer = trained()
    image = Image({"model": net, "optim": optimizer})
    other = Net()
    other.add_module("more", nn.Linear(1, 1))
    notes = image.restore({"model": other}, strict=False)
    assert torch.equal(other.embed.weight, net.embed.weight)
    assert any(note.startswith("model.more.weight") for note in notes) and any(
        note.startswith("optim") for note in notes
    )


def test_untied_model_takes_a_tied_checkpoint():
    net, optimizer = trained()
    image = Image({"model": net})
    other = Net()
    other.head.weight = nn.Parameter(torch.zeros(7, 4))
    image.restore({"model": other})
    assert torch.equal(other.head.weight, net.embed.weight) and other.head.weight is not other.embed.weight


def test_two_modules_under_one_optimizer_have_full_names():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1, momentum=0.9)
    (a(torch.ones(2)) + b(torch.ones(2))).sum().backward()
    optimizer.step()
    names = Image({"g": a, "d": b, "optim": optimizer}).names()
    assert {"optim.state.g.weight.momentum_buffer", "optim.state.d.weight.momentum_buffer"} <= names


class Average(nn.Module):
    """Averages in a dict that only its own state_dict() shows; `trains` makes it one with parameters of its own."""

    def __init__(self, trains=False):
        super().__init__()
        self.averages, self.count = {"w": torch.zeros(3)}, 0
        self.register_buffer("decay", torch.ones(()))
        if trains:
            self.scale = nn.Parameter(torch.ones(3))

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        found = super().state_dict(*args, destination=destination, prefix=prefix, keep_vars=keep_vars)
        found[prefix + "averages.w"], found[prefix + "count"] = self.averages["w"], self.count
        return found

    def load_state_dict(self, state):
        self.averages["w"], self.count = state.pop("averages.w"), state.pop("count")
        return super().load_state_dict(state)


ADDS = "the state_dict\\(\\) of a Average also holds 'averages.w', which is no parameter and no buffer; "


@pytest.mark.parametrize("trains, then", [(False, "give this module to `state` as well"), (True, "use register_buffer")])
def test_a_state_dict_that_adds_entries_is_refused_where_it_is_not_asked(trains, then):
    for state, path in (({"m": nn.Sequential(nn.Linear(1, 1), Average(trains))}, "m.1"), ({"m": Average(True)}, "m")):
        with pytest.raises(TypeError, match=f"^{path}: {ADDS}{then if path == 'm.1' else 'use register_buffer'}"):
            State(state)


def test_an_extra_state_does_not_show_what_a_state_dict_adds():
    class Both(Average):
        def get_extra_state(self):
            return 3

        def set_extra_state(self, state):
            pass

    with pytest.raises(TypeError, match="^m.0: the state_dict.* of a Both also holds 'averages.w'"):
        State({"m": nn.Sequential(Both())})


def test_a_module_whose_state_dict_adds_entries_is_saved_by_it_under_a_key_of_its_own():
    def net():
        return nn.Sequential(nn.Linear(1, 1), nn.ModuleList([Average()]))

    one, two = net(), net()
    one[1][0].averages["w"], one[1][0].count, one[1][0].decay = torch.arange(3.0), 7, torch.tensor(0.5)
    states = [{"m": each, "own": {"average": each[1][0]}} for each in (one, two)]
    Image(states[0]).restore(states[1])
    assert two[1][0].averages["w"].tolist() == [0, 1, 2] and two[1][0].count == 7 and two[1][0].decay == 0.5


class Wrapper(nn.Module):
    """As Fabric's: shows what it wraps, under the names of before."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def state_dict(self, *args, **kwargs):
        return self.inner.state_dict(*args, **kwargs)


class Renaming(nn.Linear):
    def state_dict(self, *args, **kwargs):
        return {"old." + name: value for name, value in super().state_dict(*args, **kwargs).items()}


class Hiding(nn.Linear):
    def state_dict(self, *args, **kwargs):
        return {}


class Gathering(nn.Linear):
    """What it holds takes all ranks; so does a hook."""

    def __init__(self):
        super().__init__(1, 1)
        self._register_state_dict_hook(lambda *_: pytest.fail("a hook was called"))

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        assert not prefix, "asked as a child of another one"
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def state_dict(self, *args, **kwargs):
        return super().state_dict(*args, **kwargs)


@pytest.mark.parametrize(
    "make", [lambda: Wrapper(Gathering()), lambda: Renaming(1, 1), lambda: Hiding(1, 1), lambda: nn.Sequential(Gathering())]
)  # fmt: skip
def test_a_state_dict_of_its_own_that_adds_nothing_is_no_matter(make):
    one, two = make(), make()
    Image({"m": one}).restore({"m": two})
    assert_same(list(two.parameters()), list(one.parameters()))


def test_states_of_torchmetrics():
    metrics = pytest.importorskip("torchmetrics")
    net, again = (nn.ModuleDict({"mean": metrics.MeanMetric()}) for _ in range(2))
    assert not State({"m": net}).survey().columns, "not persistent: its own state_dict() leaves it out"
    for each in (net, again):
        each["mean"].persistent(True)
    net["mean"].update(torch.tensor([1.0, 4.0]))
    with pytest.raises(TypeError, match="^m.mean: .* of a MeanMetric also holds 'mean_value'"):
        State({"m": net})
    Image({"m": net, "mean": net["mean"]}).restore({"m": again, "mean": again["mean"]})
    assert again["mean"].mean_value == net["mean"].mean_value and again["mean"].weight == 2


def test_extra_state_of_modules():
    class Recipe(nn.Linear):
        scale = (1.0, 2)

        def get_extra_state(self):
            return {"scale": self.scale, "history": torch.arange(3)}

        def set_extra_state(self, state):
            self.scale, self.history = state["scale"], state["history"]

    one, two = nn.Sequential(Recipe(1, 1)), nn.Sequential(Recipe(1, 1))
    one[0].scale = (5.0, 6)
    Image({"model": one}).restore({"model": two})
    assert two[0].scale == (5.0, 6) and two[0].history.tolist() == [0, 1, 2]
