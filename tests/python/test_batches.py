"""A loader resumed at any batch gives what would have come next, and leaves the generators as they would have been."""

import random

import ckptd
import numpy as np
import pytest
import torch
from ckptd import extra, rng
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

DATA = TensorDataset(torch.arange(23))


class Augmented(Dataset):
    """Draws from every global generator for each item."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(23))


def workers(loader_class, **kwargs):
    return lambda: loader_class(DATA, batch_size=4, num_workers=2, **kwargs)


LOADERS = {
    "shuffled": lambda: DataLoader(DATA, batch_size=4, shuffle=True),
    "own generator": lambda: DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "replacement": lambda: DataLoader(
        DATA, batch_size=4, sampler=RandomSampler(DATA, replacement=True, num_samples=37)
    ),
    "weighted": lambda: DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler(torch.arange(1.0, 24), 23)),
    "subset": lambda: DataLoader(DATA, batch_size=4, sampler=SubsetRandomSampler(range(3, 20))),
    "batch sampler": lambda: DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 5, True)),
    "no batching": lambda: DataLoader(DATA, batch_size=None, shuffle=True),
    "augmented": lambda: DataLoader(Augmented(), batch_size=4, shuffle=True),
    "distributed": lambda: DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, 2, 1)),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "workers": workers(DataLoader, shuffle=True),
    "persistent workers": workers(DataLoader, shuffle=True, persistent_workers=True),
    "list": lambda: list(range(7)),
}


def seed_all():
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def text(value):
    return repr(value)


def run(data, count):
    """Batches, each with a draw of the training loop between them."""
    return [(text(next(data)), torch.rand(()).item(), random.random()) for _ in range(count)]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("name", LOADERS)
def test_resume_at_any_batch(name, seed):
    make = LOADERS[name]
    positions = (3, 9) if "workers" in name else range(15)
    for position in positions:
        seed_all()
        data = ckptd.batches(make(), seed)
        run(data, position)
        saved = extra.dumps([data.state_dict(), rng.capture()])
        expected = run(data, 12)
        torch.manual_seed(99)  # a new process has other generators
        random.seed(98)
        np.random.seed(97)
        again = ckptd.batches(make(), seed)
        state, generators = extra.loads(saved)
        again.load_state_dict(state)
        rng.apply(generators)
        assert run(again, 12) == expected, f"resumed at batch {position}"


def test_epochs_differ_and_cover_everything():
    data = ckptd.batches(LOADERS["shuffled"](), seed=0)
    first, second = ([next(data)[0].tolist() for _ in range(len(data))] for _ in range(2))
    assert first != second
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(23))
    assert (data.epoch, data.batch) == (1, 6)


def test_seed_leaves_the_global_generators_alone():
    seed_all()
    before = torch.get_rng_state()
    next(ckptd.batches(LOADERS["shuffled"](), seed=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_position_survives_a_save_before_the_first_batch():
    data = ckptd.batches(LOADERS["shuffled"](), seed=0)
    run(data, 4)
    state = data.state_dict()
    again = ckptd.batches(LOADERS["shuffled"](), seed=0)
    again.load_state_dict(state)
    assert extra.dumps(again.state_dict()) == extra.dumps(state)


def test_refusals():
    with pytest.raises(TypeError, match="iterator"):
        ckptd.batches(iter([1]))
    with pytest.raises(ValueError, match="empty"):
        next(ckptd.batches([]))
    state = ckptd.batches([1], seed=1).state_dict()
    with pytest.raises(ValueError, match="seed"):
        ckptd.batches([1], seed=2).load_state_dict(state)


@pytest.mark.parametrize(
    "saved, made, told",
    [
        (DataLoader(DATA, 4), DataLoader(DATA, 8), "batch_size=4, made with batch_size=8"),
        (DataLoader(Stream(), 4), DataLoader(Stream(), 8), "batch_size=4, made with batch_size=8"),
        (DataLoader(DATA, 4), DataLoader(DATA, 4, drop_last=True), "length=6, made with length=5"),
        (DataLoader(DATA, batch_sampler=[[1], [2]]), DataLoader(DATA, batch_sampler=[[1]]), "length=2, made with length=1"),
        ([1, 2], [1, 2, 3], "length=2, made with length=3"),
        (DataLoader(Stream(), 4), DataLoader(DATA, 4), "length=None, made with length=6"),
    ],
)  # fmt: skip
def test_other_batches_are_refused(saved, made, told):
    state = extra.loads(extra.dumps(ckptd.batches(saved).state_dict()))
    with pytest.raises(ValueError, match=f"ckptd.batches: saved with {told}"):
        ckptd.batches(made).load_state_dict(state)
    older = {key: value for key, value in state.items() if key not in ("batch_size", "length")}
    ckptd.batches(made).load_state_dict(older)  # of a version that did not save them


class Epochs(list):
    """As bucketing samplers: another number of batches in each epoch."""

    def set_epoch(self, epoch):
        self[:] = range(3 + epoch)


def test_a_loader_whose_length_changes_with_the_epoch_resumes():
    data = ckptd.batches(Epochs(range(3)))
    assert [next(data) for _ in range(5)] == [0, 1, 2, 0, 1]
    again = ckptd.batches(Epochs(range(3)))
    again.load_state_dict(data.state_dict())
    assert [next(again) for _ in range(3)] == [next(data) for _ in range(3)] == [2, 3, 0]


class Late(Dataset):
    """Makes its generators with its first item, as one does that is copied into workers before."""

    def __init__(self, make):
        self.make = make
        self.random = self.same = None

    def __len__(self):
        return 23

    def __getitem__(self, index):
        if self.random is None:
            self.random = self.same = self.make()
        return torch.tensor([index, draw(self.same)], dtype=torch.float64)


class LateStream(Late, IterableDataset):
    def __iter__(self):
        return map(self.__getitem__, range(23))


def draw(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item()
    return generator.random() if hasattr(generator, "random") else generator.random_sample()


class Unknown(random.Random):
    """Of a class that only the user can make."""


KINDS = {
    "torch": torch.Generator,
    "python": random.Random,
    "numpy": np.random.default_rng,
    "another of numpy": lambda: np.random.Generator(np.random.Philox()),
    "numpy's old one": np.random.RandomState,
}


@pytest.mark.parametrize("dataset", [Late, LateStream])
@pytest.mark.parametrize("kind", KINDS)
def test_generators_that_are_made_with_the_first_item(kind, dataset):
    def make():
        return ckptd.batches(DataLoader(dataset(KINDS[kind]), batch_size=4))

    for position in (1, 6, 8):
        data = make()
        run(data, position)
        state = data.state_dict()
        expected = [text(next(data)) for _ in range(9)]
        again = make()
        again.load_state_dict(state)
        assert [text(next(again)) for _ in range(9)] == expected, f"resumed at batch {position}"
        assert again.loader.dataset.same is again.loader.dataset.random, "it was one"


def state_behind_one_batch(make):
    data = ckptd.batches(DataLoader(Late(make), batch_size=4))
    next(data)
    return data.state_dict()


def of_older_version(state):
    start = {**state["start"], "own": [saved for *_, saved in state["start"]["own"]]}
    return {**state, "own": [saved for *_, saved in state["own"]], "start": start}


def test_generators_saved_without_names():
    data = ckptd.batches(DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator()))
    run(data, 3)
    older = of_older_version(data.state_dict())
    again = ckptd.batches(DataLoader(DATA, batch_size=4, shuffle=True, generator=torch.Generator()))
    again.load_state_dict(older)
    assert [text(next(again)) for _ in range(9)] == [text(next(data)) for _ in range(9)]
    late = ckptd.batches(DataLoader(Late(random.Random), batch_size=4))
    late.load_state_dict(of_older_version(state_behind_one_batch(random.Random)))
    with pytest.raises(ValueError, match="1 generators were saved, the loader has 0; make in __init__ those that its"):
        next(late)


def test_generators_that_cannot_be_resumed_are_named():
    def resumed(state, dataset):
        data = ckptd.batches(DataLoader(dataset, batch_size=4))
        data.load_state_dict(state)
        next(data)

    state = state_behind_one_batch(Unknown)
    with pytest.raises(ValueError, match=r"dataset.random and dataset.same was a Unknown .* make it in __init__"):
        resumed(state, Late(Unknown))
    dataset = Late(random.Random)
    dataset.random = dataset.same = Unknown()
    del state["start"]["own"][:]
    with pytest.raises(ValueError, match="dataset.random and dataset.same had no generator of its own when this was"):
        resumed(state, dataset)
    state["start"]["own"] = state["own"]
    resumed(state, dataset)
    dataset.same = dataset.random = torch.Generator()
    with pytest.raises(ValueError, match="dataset.random was saved as a Unknown, which it is not now"):
        resumed(state, dataset)
    dataset.same, dataset.random = Unknown(), Unknown()
    with pytest.raises(ValueError, match="dataset.same had no generator of its own when this was saved; resume with"):
        resumed(state, dataset)
