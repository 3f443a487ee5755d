"""A small GPT (about 10 million parameters) over bytes, and its text: the licence texts every Debian has."""

import hashlib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 64
TEXTS = Path("/usr/share/common-licenses")


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width), nn.Dropout(dropout))

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, width=320, depth=8, heads=5, dropout=0.1):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.tokens.weight  # tied, as in GPT-2: one tensor under two names
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def read_texts():
    """All texts once: links and copies are the same text."""
    seen, texts = set(), []
    for path in sorted(TEXTS.iterdir()):
        data = path.resolve().read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(data).digest()
        if data and digest not in seen:
            seen.add(digest)
            texts.append(data)
    return b"\n".join(texts)


class Windows(torch.utils.data.Dataset):
    """Every 768th window of CONTEXT bytes and its successor bytes: few enough that a short run crosses epochs."""

    def __init__(self, stride=768):
        self.data = torch.frombuffer(bytearray(read_texts()), dtype=torch.uint8).long()
        self.stride = stride

    def __len__(self):
        return (len(self.data) - CONTEXT - 1) // self.stride

    def __getitem__(self, index):
        window = self.data[index * self.stride :][: CONTEXT + 1]
        return window[:-1], window[1:]
