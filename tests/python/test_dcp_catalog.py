"""What a load believes of headers and documents: nothing. No agent."""

import json

import ckptd
import pytest
import torch
from ckptd.header import Header
from ckptd.torch._catalog import Catalog
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex


def header(tensors, sharding=None, aliases=None):
    """tensors: name -> (dtype, shape, begin, end)."""
    metadata = {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": at} for name, at in (sharding or {}).items()})}
    if aliases:
        metadata["ckptd.aliases"] = json.dumps(aliases)
    document = {"__metadata__": metadata}
    for name, (dtype, shape, begin, end) in tensors.items():
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    found = Header()
    found.add(json.dumps(document), 4096)
    return found


def catalog(*ranks):
    found = Catalog("step 1")
    for rank, (headers, document) in enumerate(ranks):
        found.add_rank(rank, headers, {"dcp": document})
    return found


def test_shards_of_two_ranks_and_what_both_have():
    same = {"r": ("F32", [3], 16, 28), "__dcp_bytes__.rank-00000": ("U8", [50], 28, 78)}
    first = header({"w": ("F32", [2, 2], 0, 16), **same}, {"w": [0, 0], "r": [0]})
    second = header({"w": ("F32", [1, 2], 0, 8), **same}, {"w": [2, 0], "r": [0]})
    document = {"sizes": {"w": [3, 2]}, "bytes": {"n": [5, 50]}, "paths": {"w": ["model", "w"], "n": ["n"]}}
    metadata = catalog(([first], document), ([second], {**document, "paths": {"n": ["other"]}})).metadata()
    whole = metadata.state_dict_metadata["w"]
    assert whole.size == (3, 2) and [chunk.offsets for chunk in whole.chunks] == [(0, 0), (2, 0)]
    assert len(metadata.state_dict_metadata["r"].chunks) == 1  # the first rank's
    assert isinstance(metadata.state_dict_metadata["n"], BytesStorageMetadata)
    assert metadata.planner_data == {"w": ("model", "w"), "n": ("n",)}
    place = metadata.storage_data[MetadataIndex("w", [2, 0])]
    assert (place.rank, place.begin, place.end, place.dtype) == (1, 4096, 4104, torch.float32)
    assert metadata.storage_data[MetadataIndex("n")][:3] == (0, 4096 + 33, 4096 + 78)


def test_without_a_document_the_size_is_where_the_shards_end():
    headers = [header({"w": ("F32", [2], 0, 8)}, {"w": [at]}, {"tied": "w"} if at == 0 else None) for at in (0, 2)]
    metadata = catalog(([headers[0]], {}), ([headers[1]], {})).metadata()
    assert metadata.state_dict_metadata["w"].size == (4,) and metadata.planner_data is None


W = {"w": ("F32", [2, 2], 0, 16)}
PACKED = {"__dcp_bytes__.rank-00000": ("U8", [50], 0, 50)}


@pytest.mark.parametrize(
    "headers, document, sentence",
    [
        ([header({"w": ("F32", [2, 2], 0, 20)})], {}, "has 20 bytes"),
        ([header(W, {"w": [1]})], {}, r"at \[1\]"),
        ([header(W, {"w": [-1, 0]})], {}, "-1 is no size"),
        ([header(W)], {"sizes": {"w": [True, 2]}}, "True is no size"),
        ([header(W, {"w": [2, 0]})], {"sizes": {"w": [3, 2]}}, r"its part is F32 \[2, 2\] at \[2, 0\] of \[3, 2\]"),
        ([header(W)], {"sizes": {"w": [1 << 60, 2]}}, "is no size"),
        ([header(W)], {"sizes": {"w": [4, 2]}}, "w: parts of it are missing"),
        ([header(W), header({"w": ("I32", [2, 2], 0, 16)}, {"w": [2, 0]})], {}, "its part is I32"),
        ([header(W), header({"w": ("F32", [4], 0, 16)}, {"w": [4]})], {}, r"its part is F32 \[4\]"),
        ([header(PACKED)], {"bytes": {"n": [40, 51]}}, "n: bytes 40 to 51 are not in the image"),
        ([header(PACKED)], {"bytes": {"n": [40, 30]}}, "n: bytes 40 to 30"),
        ([header(W)], {"bytes": {"n": [0, 1]}}, "n: bytes 0 to 1"),
        ([header({**W, **PACKED})], {"bytes": {"w": [0, 1]}}, "w: bytes 0 to 1"),
        ([header(PACKED)], {"bytes": {"n": 7}}, "rank 0"),
        ([header(PACKED)], {"bytes": ["n"]}, "rank 0"),
        ([header(W)], {"planner": {"$": "evil", "v": 1}}, "unknown tag"),
    ],
)
def test_what_makes_no_sense_is_refused(headers, document, sentence):
    with pytest.raises(ckptd.RestoreError, match=f"step 1: .*{sentence}"):
        catalog((headers, document)).metadata()
