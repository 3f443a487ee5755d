"""Typed JSON keeps what plain JSON loses, and refuses what it cannot keep."""

import json
import math
import random
from collections import Counter, OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from ckptd import extra

VALUES = [
    None, True, 0, -1, 2**53, 2**53 + 1, -(2**200), 0.1, -0.0, 1e-320, math.inf, -math.inf, "", "é\ud800\0", 1j,
    complex(-0.0, math.inf),
    b"", b"\x00\xff", bytearray(b"ab"), (), (1, (2, [3])), {1, 2}, {(1, "a"), None}, frozenset({"x"}),
    [1, 2.5, None, "s"],
    {}, {"a": {"b": [1]}}, {1: "a", (2, 3): "b", None: {}}, {"$": "t", "v": 1}, {"a$": 1}, Counter({30: 1, 80: 2}),
    OrderedDict([("b", 1), ("a", (2,))]), defaultdict(list, {"k": [1]}), defaultdict(None, {3: 4}), [math.nan, 1.0],
    [2**60, 1], [True, 2], tuple(range(1000)), extra.TensorRef("a.b"), extra.TensorRef("n", True), extra.ObjectRef("p"),
    extra.TensorRef("a.b", wraps=True), extra.TensorRef("a.b", device="cuda:1"),
]  # fmt: skip


def same(a, b):
    """Equal in type, value and sign, down to the leaves."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, complex):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def kind(value):
    """The test's name: the order of a set is another in each of pytest's processes, so it is not repr()."""
    return type(value).__name__


@pytest.mark.parametrize("value", VALUES, ids=kind)
def test_round_trip(value):
    text = extra.dumps(value)
    assert text.isascii()
    assert same(extra.loads(text), value)
    assert extra.dumps(extra.loads(text)) == text


@pytest.mark.parametrize(
    "scalar",
    [
        np.float32(0.1),
        np.int64(-5),
        np.bool_(True),
        np.float64(math.nan),
        np.str_("ü"),
        np.datetime64("2026-01-01", "ns"),
        np.complex64(1j),
        np.uint64(2**64 - 1),
    ],
    ids=kind,
)
def test_numpy_scalars(scalar):
    again = extra.loads(extra.dumps(scalar))
    assert type(again) is type(scalar) and again.tobytes() == scalar.tobytes()


def test_generators_and_schedulers_survive():
    random.seed(3)
    state = extra.loads(extra.dumps(random.getstate()))
    expected = random.random()
    random.setstate(state)
    assert random.random() == expected
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    saved = scheduler.state_dict()
    assert same(extra.loads(extra.dumps(saved)), saved)
    assert type(extra.loads(extra.dumps(saved))["milestones"]) is Counter


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value, path",
    [
        ({"a": [1, {"b": object()}]}, "state.a[1].b"),
        ({"a": Point(1, 2)}, "state.a"),
        ((1, {2: lambda: 0}), "state[1][2]"),
        ({"t": torch.zeros(1)}, "state.t"),
        ({"n": np.zeros(1)}, "state.n"),
        ({"d": defaultdict(lambda: 0)}, "state.d"),
        ({object: 1}, "state key"),
        ({"o": np.array(object())[()]}, "state.o"),
    ],
    ids=["object", "namedtuple", "function", "tensor", "array", "factory", "key", "np.object"],
)
def test_refusals_name_the_path(value, path):
    with pytest.raises(TypeError) as caught:
        extra.dumps(value, "state")
    assert str(caught.value).startswith(path + ":"), caught.value


def test_cycles_are_refused():
    value = []
    value.append(value)
    with pytest.raises(TypeError, match="cycle"):
        extra.dumps(value)


def test_equal_sets_give_equal_text():
    assert extra.dumps(set("abcdefgh")) == extra.dumps(set("hgfedcba"))


@pytest.mark.parametrize(
    "text",
    [
        '{"$":"pickle","v":1}',
        '{"$":"tuple"}',
        '{"$":"tuple","v":3}',
        '{"$":"bytes","v":"*"}',
        '{"$":"scalar","v":["O","AAAA"]}',
        '{"$":"scalar","v":["<f8","AAAA"]}',
        '{"$":"defaultdict","v":["eval",[]]}',
        '{"$":"float","v":"1.0"}',
        '{"$":"int","v":"x"}',
        '{"$":"placed","v":["a"]}',
        '{"$":"placed","v":3}',
        "{",
    ],
)
def test_hostile_text_is_a_value_error(text):
    with pytest.raises(ValueError):
        extra.loads(text)


def test_padding():
    assert extra.pad("{}", 8) == b"{}      "
    assert json.loads(extra.pad("[1]", 64)) == [1]
    with pytest.raises(ValueError, match="9 bytes"):
        extra.pad("123456789", 8)
