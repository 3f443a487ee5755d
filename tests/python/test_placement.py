"""Where a restore makes what is not there yet, and what it leaves out. The meta device stands for a GPU: tensors can be
made on it."""

import ckptd
import pytest
import torch
from ckptd import extra
from ckptd.placement import Plan
from ckptd.state import State, _plain_text, extra_text
from memory_image import Image, _FromMemory, _View
from torch import nn

GPU = "meta"


class Lists(torch.optim.Optimizer):
    """Keeps its matrices in lists, as SOAP does, one of them in host memory."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] = {
                "GG": [parameter @ parameter.t(), {"Q": parameter * 2}],
                "host": [torch.ones(2)],
                "array": {"seen": torch.arange(3).numpy()},
            }


class Mixed(torch.optim.AdamW):
    """The first group's `step` is where its parameters are, as with fused=True on a GPU."""

    def __init__(self, params):
        first, *rest = params
        super().__init__([{"params": [first]}, {"params": rest}])

    def step(self):
        super().step()
        for held in self.state.values():
            held["step"] = held["step"].cpu()
        for held in [self.state[parameter] for parameter in self.param_groups[0]["params"]]:
            held["step"] = held["step"].to(held["exp_avg"].device)


class LBFGS(torch.optim.LBFGS):
    def step(self):
        super().step(lambda: sum(parameter.sum() for parameter in self.param_groups[0]["params"]).detach())


class Held:
    """An object that takes what it is given."""

    def __init__(self, total=None):
        self.total = total

    def state_dict(self):
        return {} if self.total is None else {"total": [self.total]}

    def load_state_dict(self, state):
        (self.total,) = state["total"]


def trained(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False))
    optimizer = make(model.parameters())
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return {"model": model, "optim": optimizer}


def fresh(make, device=GPU):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 2, bias=False)).to(device)
    return {"model": model, "optim": make(model.parameters())}


def moved(value, stays=()):
    """`value` with its tensors on the GPU, but under the keys `stays`."""
    if isinstance(value, torch.Tensor):
        return value.to(GPU)
    if isinstance(value, dict):
        return {key: item if key in stays else moved(item, stays) for key, item in value.items()}
    return [moved(item, stays) for item in value] if isinstance(value, list) else value


def on_gpu(state, make, stays=()):
    """The same state as a trainer on a GPU has it."""
    twin = fresh(make)
    pairs = zip(state["model"].parameters(), twin["model"].parameters())
    twin["optim"].state.update({there: moved(state["optim"].state[here], stays) for here, there in pairs
                                if here in state["optim"].state})  # fmt: skip
    return twin


def document_of(state):
    parts = (whole := State(state)).surveys() and whole.parts
    return extra_text(_plain_text(parts, [part.capture() for part in parts]), "null").encode()


class Placed(_FromMemory):
    """A restore of everything but the bytes."""

    def __init__(self, header, document, state, strict=True):
        super().__init__(header, State(state), False, strict)
        self._document = document

    def _bytes(self, entry):
        return self._document

    def _read(self, targets):
        pass


def place(image, document, state, strict=True):
    restorer = Placed(image, document, state, strict)
    _, failure = restorer._try_load(_View())
    if failure is not None:
        raise failure
    return restorer._notes


def devices(value):
    """Those of all tensors, in the form of `value`."""
    if isinstance(value, torch.Tensor):
        return value.device.type
    if isinstance(value, dict):
        return {key: devices(item) for key, item in value.items()}
    return [devices(item) for item in value] if isinstance(value, (list, tuple)) else type(value).__name__


def state_devices(state):
    return [devices(state["optim"].state[p]) for p in state["model"].parameters() if p in state["optim"].state]


@pytest.mark.parametrize(
    "make, stays", [(LBFGS, ()), (Lists, ("host",)), (Lists, ("GG",)), (Mixed, ("step",))],
    ids=["LBFGS", "lists", "lists in host memory", "steps on both"],
)  # fmt: skip
def test_state_is_made_where_it_was(make, stays):
    here = trained(make)
    there = on_gpu(here, make, stays)
    if make is Mixed:
        first = there["optim"].state[there["model"][0].weight]
        first["step"] = first["step"].to(GPU)
    expected = state_devices(there)
    assert GPU in str(expected)
    again = fresh(make)
    place(Image(here), document_of(there), again)
    assert state_devices(again) == expected


def test_what_dicts_and_objects_hold_is_made_where_it_was():
    model = nn.Linear(2, 2)

    def state(device, ema=None, total=None):
        return {"model": nn.Linear(2, 2).to(device), "ema": {} if ema is None else ema, "held": Held(total)}

    ema, total = {"w": model.weight.detach(), "seen": torch.zeros(1), "array": torch.ones(2).numpy()}, torch.ones(3)
    image = Image(state("cpu", ema, total))
    saved = document_of(state(GPU, {**ema, "w": ema["w"].to(GPU)}, total.to(GPU)))
    again = state(GPU)
    place(image, saved, again)
    assert devices(again["ema"]) == {"w": GPU, "seen": "cpu", "array": "ndarray"}
    assert again["held"].total.device.type == GPU
    again = state("cpu")  # the same checkpoint where nothing is on a GPU
    place(image, saved, again)
    assert devices(again["ema"]) == {"w": "cpu", "seen": "cpu", "array": "ndarray"}


def test_a_tensor_option_is_made_where_it_was():
    make = lambda params: torch.optim.Adam(params, lr=0.1, foreach=False)  # noqa: E731
    here, there, again = trained(make), fresh(make), fresh(make)
    here["optim"].param_groups[0]["lr"] = torch.tensor(0.1)
    there["optim"].param_groups[0]["lr"] = torch.tensor(0.1, device=GPU)
    place(Image(here), document_of(there), again, strict=False)
    assert again["optim"].param_groups[0]["lr"].device.type == GPU


def test_a_checkpoint_that_does_not_tell_devices():
    """As they were written before: of state that is no tensor of its own, and of dicts, nothing is said."""
    here = {**trained(Lists), "ema": {"w": torch.ones(2)}}
    document = document_of(here)
    assert b"placed" not in document and b'"devices":{}' in document
    again = {**fresh(Lists), "ema": {}}
    place(Image(here), document, again)
    assert again["ema"]["w"].device.type == "cpu"
    assert state_devices(again) == [{"GG": [GPU, {"Q": GPU}], "host": [GPU], "array": {"seen": "ndarray"}}] * 2


@pytest.mark.parametrize(
    "saved, here, made",
    [
        ("", ["cuda:0"], "cpu"), ("cpu", ["cuda:0"], "cpu"), ("cuda:0", [], "cpu"), ("cuda:3", ["cuda:3"], "cuda:3"),
        ("cuda:3", ["cuda:0"], "cuda:0"), ("cuda:1", ["cuda:0", "cuda:1"], "cuda:1"),
        ("cuda:3", ["cuda:0", "cuda:1"], "cuda"),
    ],
)  # fmt: skip
def test_which_gpu(saved, here, made):
    plan = Plan(Image({"x": torch.zeros(1)}), {"parts": {}}, map(torch.device, ["cpu", *here]))
    assert plan.place(saved) == torch.device(made)


def test_older_references_have_no_device():
    assert extra.loads('{"$":"tensor","v":"a"}') == extra.TensorRef("a")
    assert extra.dumps(extra.TensorRef("a")) == '{"$":"tensor","v":"a"}'
    assert extra.loads('{"$":"placed","v":["a","cuda:1"]}') == extra.TensorRef("a", device="cuda:1")


def wider(make, first="model", steps=0):
    """A trainer whose second layer has another shape than in `trained`."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 5, bias=False))
    optimizer = make(model.parameters())
    train(model, optimizer, steps)
    state = {"model": model, "optim": optimizer}
    return state if first == "model" else dict(reversed(state.items()))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


@pytest.mark.parametrize("first", ["model", "optim"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, Lists])
def test_state_of_a_parameter_with_another_shape_is_left_out(make, first):
    saved, other = trained(make), wider(make, first)
    notes = Image(saved).restore(other, strict=False)
    kept, changed = other["model"].parameters()
    assert set(other["optim"].state) == {kept}
    assert notes == [
        "model.1.weight: F32 [5, 3] here, F32 [2, 3] in the checkpoint",
        "optim: the state of 1.weight is left out, its shape is another one here",
    ]
    train(other["model"], other["optim"])
    assert set(other["optim"].state) == {kept, changed}


def test_state_that_is_there_stays_as_it_is():
    saved, other = trained(torch.optim.AdamW), wider(torch.optim.AdamW, steps=5)
    kept, changed = other["model"].parameters()
    before = {key: value.clone() for key, value in other["optim"].state[changed].items()}
    Image(saved).restore(other, strict=False)
    now = other["optim"].state
    assert now[changed].keys() == before.keys() and all(torch.equal(now[changed][key], before[key]) for key in before)
    assert now[kept]["step"].item() == 2, "that of the others is restored"


def test_a_parameter_of_another_dtype_keeps_its_state():
    saved, other = trained(torch.optim.AdamW), fresh(torch.optim.AdamW, "cpu")
    other["model"].double()
    notes = Image(saved).restore(other, strict=False)
    assert len(notes) == 2 and all(note.startswith("model.") for note in notes)
    assert [held["step"].item() for held in other["optim"].state.values()] == [2, 2]


def test_where_there_is_no_state_none_is_left_out():
    make = lambda params: torch.optim.SGD(params, lr=0.1)  # noqa: E731
    assert len(Image(trained(make)).restore(wider(make), strict=False)) == 1


def test_another_shape_is_a_mismatch():
    with pytest.raises(ckptd.LayoutMismatch, match="model.1.weight: F32") as caught:
        Image(trained(torch.optim.AdamW)).restore(wider(torch.optim.AdamW))
    assert "left out" not in str(caught.value)
