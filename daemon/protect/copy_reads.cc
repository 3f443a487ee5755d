#include "daemon/protect/copy_reads.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/on_loop.h"
#include "daemon/protect/parity_reads.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kNobodyCame = std::chrono::seconds(60);

}  // namespace

CopyReads::CopyReads(Loop& loop, const Clock& clock, Handler handler)
    : loop_(loop), clock_(clock), handler_(std::move(handler)) {}

absl::StatusOr<v1::DescribeResponse> CopyReads::Describe(const std::string& peer, const v1::DescribeRequest& request) {
  const v1::CopyName& copy = request.copy();
  const Image image = {peer, copy.job(), copy.rank(), ToId(copy.snapshot())};
  CKPTD_ASSIGN_OR_RETURN(Reading * reading, Begin({image, request.first_chunk(), request.chunks()}, request));
  reading->touched = clock_.Monotonic();
  CKPTD_ASSIGN_OR_RETURN(const auto token, handler_.issue({peer, image.job, image.rank, image.id, reading->number}));
  v1::DescribeResponse response;
  response.set_world_size(reading->held.head.block.world);
  *response.mutable_layout() = LayoutOf(reading->held.head);
  *response.mutable_record() = RecordOf(*reading->held.record);
  response.set_token(token.data(), token.size());
  response.set_slot(reading->number);
  return response;
}

// The one that is there, if it is asked for again: its transfer goes on.
absl::StatusOr<CopyReads::Reading*> CopyReads::Begin(const Key& key, const v1::DescribeRequest& request) {
  const auto found = readings_.find(key);
  if (found != readings_.end()) return &found->second;
  const Image& image = key.image;
  CKPTD_RETURN_IF_ERROR(MayHaveMore(image));
  CKPTD_ASSIGN_OR_RETURN(HeldSnapshot held, handler_.open(image.job, image.rank, image.id));
  CKPTD_ASSIGN_OR_RETURN(const ChunkRange range, RangeOf(request, *held.record));
  return &readings_.emplace(key, Reading{handler_.number(), range, std::move(held), Nanos(0), {}}).first->second;
}

// Each is remembered for a while.
absl::Status CopyReads::MayHaveMore(const Image& image) const {
  size_t ranges = 0;
  for (auto at = readings_.lower_bound({image}); at != readings_.end() && at->first.image == image; ++at) ++ranges;
  if (ranges < kMostRanges) return absl::OkStatus();
  return Error(ErrorCode::BUSY,
               absl::StrCat("job ", image.job, " rank ", image.rank, " step ", image.id.step, ": node ", image.peer,
                            " has asked for ", ranges, " ranges of chunks already"));
}

std::optional<transport::BulkEnd> CopyReads::Redeem(const transport::TransferName& name) {
  const Image image = {name.peer, name.job, name.rank, name.snapshot};
  for (auto at = readings_.lower_bound({image}); at != readings_.end() && at->first.image == image; ++at) {
    if (at->second.number == name.slot) return EndOf(name, at->second);
  }
  return std::nullopt;
}

transport::BulkEnd CopyReads::EndOf(const transport::TransferName& name, Reading& reading) {
  reading.touched = clock_.Monotonic();
  transport::BulkEnd end;
  end.name = name;
  const region::SlotRecord& record = *reading.held.record;
  const ChunkRange& range = reading.range;
  const uint64_t begin = range.first_chunk * record.chunk_bytes;
  end.image_bytes = std::min(begin + range.chunks * record.chunk_bytes, record.slot_bytes) - begin;
  end.chunk_bytes = record.chunk_bytes;
  transport::ServedSend send;
  send.source.read = [file = reading.held.file, begin](uint64_t offset, std::span<std::byte> into) {
    return file->Read(begin + offset, into);
  };
  send.source.keep = reading.moving.lock();
  if (send.source.keep == nullptr) reading.moving = send.source.keep = OnLoop(loop_, reading.held.keep);
  send.source.file = {reading.held.file->read_fd(), begin};
  send.limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  const auto crcs = record.chunk_crcs.begin() + static_cast<ptrdiff_t>(range.first_chunk);
  send.chunk_crcs.assign(crcs, crcs + static_cast<ptrdiff_t>(range.chunks));
  end.end = std::move(send);
  end.done = scope_.Bind([this, number = reading.number](const absl::Status& status) {
    if (status.ok()) WasRead(number);
  });
  end.wanted = [there = std::weak_ptr<const char>(reading.there)] { return !there.expired(); };
  return end;
}

// Its slot may be waited for, by a newer copy or by the rank itself.
void CopyReads::WasRead(uint32_t number) {
  std::erase_if(readings_, [&](const auto& entry) { return entry.second.number == number; });
}

// What is read at this moment keeps its slot by itself; what broke off does not wait for its next connection.
void CopyReads::HaveLoaded(const std::string& job) {
  std::erase_if(readings_, [&](const auto& entry) { return entry.first.image.job == job; });
}

// What still moves keeps its number: whoever reads it asks under that for the next connection.
void CopyReads::Sweep() {
  const Nanos now = clock_.Monotonic();
  for (auto& [key, reading] : readings_) {
    if (!reading.moving.expired()) reading.touched = now;
  }
  std::erase_if(readings_, [&](const auto& entry) { return now - entry.second.touched > kNobodyCame; });
}

}  // namespace ckptd::protect
