#include "daemon/protect/copy_messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/region/peer_fill.h"

namespace ckptd::protect {

v1::CopyName NameOfCopy(const std::string& job, Rank rank, const SnapshotId& id) {
  v1::CopyName name;
  name.set_job(job);
  name.set_rank(rank);
  SetRef(id, name.mutable_snapshot());
  return name;
}

v1::CopyLayout LayoutOf(const region::CtlHead& head) {
  v1::CopyLayout layout;
  layout.set_chunk_bytes(head.block.chunk_bytes);
  layout.set_slot_bytes(head.block.slot_bytes);
  layout.set_header_crc(head.block.header_crc);
  for (const ImageExtent& image : head.images) {
    v1::ImageSize* size = layout.add_images();
    size->set_bytes(image.bytes);
    size->set_header_bytes(image.header_bytes);
  }
  return layout;
}

std::vector<ImageExtent> ExtentsOf(const v1::CopyLayout& layout) {
  std::vector<ImageExtent> images;
  uint64_t offset = 0;
  for (const v1::ImageSize& size : layout.images()) {
    images.push_back({offset, size.bytes(), size.header_bytes()});
    offset += size.bytes();
  }
  return images;
}

v1::CopyRecord RecordOf(const region::SlotRecord& record) {
  const RecordHead& head = record.head;
  v1::CopyRecord out;
  SetRef(record.id(), out.mutable_snapshot());
  SetRef({head.parent_attempt, head.parent_step}, out.mutable_parent());
  out.set_ticket(head.ticket);
  out.set_trace(head.trace);
  out.set_begin_unix_ns(head.begin_unix_ns);
  out.set_captured_unix_ns(head.captured_unix_ns);
  out.set_blocked_ns(head.blocked_ns);
  out.set_chunk_count(static_cast<uint32_t>(record.chunk_crcs.size()));
  out.mutable_chunk_crc()->Assign(record.chunk_crcs.begin(), record.chunk_crcs.end());
  return out;
}

v1::SealRequest SealOf(const std::string& job, Rank rank, AttemptId attempt, const region::CtlHead& head,
                       const region::SlotRecord& record) {
  v1::SealRequest request;
  *request.mutable_copy() = NameOfCopy(job, rank, record.id());
  request.set_attempt(attempt);
  request.set_header_crc(head.block.header_crc);
  *request.mutable_record() = RecordOf(record);
  request.mutable_record()->clear_chunk_crc();
  request.set_root_crc(region::RootCrc(record.chunk_crcs));
  return request;
}

region::PeerSeal SealOf(const v1::SealRequest& request) {
  const v1::CopyRecord& record = request.record();
  region::PeerSeal seal;
  seal.head.attempt = record.snapshot().attempt();
  seal.head.step = record.snapshot().step();
  seal.head.parent_attempt = record.parent().attempt();
  seal.head.parent_step = record.parent().step();
  seal.head.ticket = record.ticket();
  seal.head.trace = record.trace();
  seal.head.begin_unix_ns = record.begin_unix_ns();
  seal.head.captured_unix_ns = record.captured_unix_ns();
  seal.head.blocked_ns = record.blocked_ns();
  seal.root_crc = request.root_crc();
  return seal;
}

region::PeerMarks ToMarks(const v1::CopyMarks& marks) {
  return {marks.attempt(), ToId(marks.protected_()), ToId(marks.captured()), marks.floor()};
}

v1::CopyMarks MarksOf(const v1::State& state) {
  v1::CopyMarks marks;
  marks.set_attempt(state.attempt());
  *marks.mutable_protected_() = state.protected_();
  *marks.mutable_captured() = state.protecting();
  marks.set_floor(state.floor());
  return marks;
}

bool IsAhead(const v1::CopyMarks& told, const v1::CopyMarks& known) {
  return ToId(told.protected_()) > ToId(known.protected_()) || ToId(told.captured()) > ToId(known.captured()) ||
         told.floor() > known.floor();
}

transport::CopyAnswer<v1::OfferResponse> LaterIfUnwanted(transport::CopyAnswer<v1::OfferResponse> answer) {
  return [answer = std::move(answer)](absl::StatusOr<v1::OfferResponse> said) {
    const ErrorCode code = CodeOf(said.status());
    if (code == ErrorCode::SUPERSEDED || code == ErrorCode::BELOW_FLOOR)
      said = Error(ErrorCode::BUSY,
                   absl::StrCat(said.status().message(), "; its owner has heard of later steps than this node"));
    answer(std::move(said));
  };
}

absl::StatusOr<region::PeerSpec> SpecOf(const v1::OfferRequest& request) {
  region::PeerSpec spec;
  spec.layout.job = request.copy().job();
  if (!absl::SimpleAtoi(request.user(), &spec.layout.uid))
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("job ", spec.layout.job, ": no user id: ", request.user()));
  spec.layout.rank = request.copy().rank();
  spec.layout.world = request.world_size();
  spec.layout.header_crc = request.layout().header_crc();
  spec.layout.chunk_bytes = request.layout().chunk_bytes();
  spec.layout.images = ExtentsOf(request.layout());
  return spec;
}

absl::Status CheckFits(const v1::DescribeResponse& told, const region::CtlHead& head) {
  const v1::CopyLayout& layout = told.layout();
  const bool same = layout.header_crc() == head.block.header_crc && layout.slot_bytes() == head.block.slot_bytes &&
                    layout.chunk_bytes() == head.block.chunk_bytes;
  if (!same) return Error(ErrorCode::CORRUPT, "its layout is another than that of who was asked first");
  const uint64_t chunks = (head.block.slot_bytes + head.block.chunk_bytes - 1) / head.block.chunk_bytes;
  if (static_cast<uint64_t>(told.record().chunk_crc_size()) == chunks) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT,
               absl::StrCat("its record has ", told.record().chunk_crc_size(), " checksums for ", chunks, " chunks"));
}

absl::StatusOr<transport::TransferToken> TokenOf(const std::string& bytes) {
  transport::TransferToken token{};
  if (bytes.size() != token.size()) return Error(ErrorCode::PROTOCOL, "a token that is none");
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

absl::StatusOr<ChunkRange> RangeOf(const v1::DescribeRequest& request, const region::SlotRecord& record) {
  const uint64_t there = record.chunk_crcs.size();
  const uint64_t first = request.first_chunk();
  const uint64_t chunks = request.chunks() != 0 || first > there ? request.chunks() : there - first;
  if (first >= there || chunks > there - first)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("job ", request.copy().job(), " rank ", request.copy().rank(), " step ", record.head.step,
                              ": ", request.chunks(), " chunks from ", first, " on, of ", there));
  return ChunkRange{first, chunks};
}

}  // namespace ckptd::protect
