"""A scripted double of libckpt's session, and a small trainee, for tests of what the checkpointer decides."""

import numpy as np
import pytest
import torch
from torch import nn

import ckptd
from ckptd import _errors, _lib, checkpointer
from ckptd.session import StepState

CODES = {info.name: -number for number, info in _errors.INFO.items()}


class Double:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, *_):
        self.alive = True
        self.log = []
        self.tables = []
        self.refuse = {}  # step: name of the error
        self.fate = {}  # step: (flags, name of the error)
        self.torn_columns = []

    def register(self, table, extra_bytes):
        self.tables.append(list(table.columns))
        self.log.append("register")
        return 0

    def save(self, step, document, flags):
        self.log.append(f"save {step}" + (" checked" if flags & _lib.SELFCHECK else ""))
        return CODES[self.refuse[step]] if step in self.refuse else 0

    def tick(self, step, document=None, flags=0):
        said = (" published" if document else "") + (" unchanged" if flags & _lib.UNCHANGED else "")
        self.log.append(f"tick {step}{said}")
        return 0

    def gate(self):
        self.log.append("gate")
        return 0

    def info(self):
        """Nothing of it is exported to a copier."""
        return _lib.InfoView(registered=len(self.tables))

    def unexport(self, timeout):
        return 0

    def torn(self):
        return np.array(self.torn_columns, dtype=np.uint64)

    def poll(self, step):
        flags, name = self.fate.get(step, (0, None))
        return StepState(flags, CODES[name] if name else 0, 0.0, 0)

    def wait(self, step, level, timeout):
        return 0

    def close(self, timeout):
        self.alive = False
        return 0

    def eager(self):
        return {column.name for column in self.tables[-1] if column.eager}


@pytest.fixture
def make(monkeypatch):
    """Makes checkpointers over doubles; all are closed at the end, so that their hooks go."""
    monkeypatch.setattr(checkpointer, "Session", Double)
    monkeypatch.setattr(_lib, "sentence", lambda: "as the library says")
    made = []

    def make_one(state, **options):
        made.append(ckptd.Checkpointer(state, job="j", **options))
        return made[-1], made[-1]._session

    yield make_one
    for one in made:
        one.close()


def trainee(make_optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    return model, make_optimizer(model.parameters())


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
