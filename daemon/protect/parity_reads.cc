#include "daemon/protect/parity_reads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/on_loop.h"
#include "daemon/protect/parity_work.h"

namespace ckptd::protect {
namespace {

constexpr Nanos kNobodyReads = std::chrono::seconds(60);

std::vector<uint64_t> ImageBytesOf(const region::ParityRecord& record, const ParityPlace& place) {
  std::vector<uint64_t> bytes;
  for (const Rank rank : place.DataRanks()) bytes.push_back(record.members[*place.PlaceOf(rank)].bytes);
  return bytes;
}

absl::Status FillResponse(const v1::ParityContents& contents, const std::string& job, Rank rank,
                          v1::DescribeResponse& response) {
  for (const v1::ParityContents::Member& member : contents.members()) {
    if (member.rank() != rank) continue;
    response.set_world_size(member.world_size());
    *response.mutable_layout() = member.layout();
    *response.mutable_record() = member.record();
    return absl::OkStatus();
  }
  return Error(ErrorCode::CORRUPT, absl::StrCat("job ", job, " rank ", rank, ": a parity without its record"));
}

}  // namespace

std::optional<ParityPlace> PlaceOf(const region::ParityRecord& record) {
  ParityPlace place;
  for (const ParityMember& member : record.members) place.ranks.push_back(member.rank);
  place.shape = {record.data, record.parity};
  const std::optional<uint32_t> stripe = place.PlaceOf(record.group);
  if (!stripe || place.ranks.size() != place.shape.members()) return std::nullopt;
  place.stripe = *stripe;
  place.row = (record.index + place.shape.members() - place.stripe) % place.shape.members();
  if (place.row >= place.shape.parity) return std::nullopt;
  return place;
}

ParityReads::ParityReads(Loop& loop, const Clock& clock, region::Region& region, Handler handler, size_t most_ranges)
    : loop_(loop), clock_(clock), region_(region), handler_(std::move(handler)), most_ranges_(most_ranges) {}

absl::StatusOr<HeldParity> ParityReads::Open(const std::string& job, const ParityPlace& place,
                                             const SnapshotId& id) const {
  CKPTD_ASSIGN_OR_RETURN(region::PeerCopy opened, region_.peers().OpenCopy(job, place.key(), id, LayoutCrcOf(place)));
  auto copy = std::make_shared<region::PeerCopy>(std::move(opened));
  if (copy->parity == nullptr || PlaceOf(*copy->parity) != place)
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, " step ", id.step, ": parity of stripe ", place.stripe,
                                                    " here is of another group of ranks"));
  const region::SlotRecord& record = *copy->record;
  HeldParity held;
  held.bytes = ParityBytes(place, ImageBytesOf(*copy->parity, place), record.chunk_bytes);
  CKPTD_ASSIGN_OR_RETURN(held.contents, ReadContents(*copy->file, record.slot_bytes, held.bytes));
  const auto end = record.chunk_crcs.begin() + static_cast<ptrdiff_t>(held.bytes / record.chunk_bytes);
  held.crcs.assign(record.chunk_crcs.begin(), end);
  held.file = copy->file;
  held.keep = std::move(copy);
  return held;
}

absl::StatusOr<v1::DescribeResponse> ParityReads::Describe(const std::string& peer,
                                                           const v1::DescribeRequest& request) {
  const ParityPlace place = protect::PlaceOf(request.parity());
  const SnapshotId id = ToId(request.copy().snapshot());
  const std::string& job = request.copy().job();
  CKPTD_ASSIGN_OR_RETURN(HeldParity held, Open(job, place, id));
  v1::DescribeResponse response;
  CKPTD_RETURN_IF_ERROR(FillResponse(held.contents, job, request.copy().rank(), response));
  response.set_parity_bytes(held.bytes);
  response.mutable_parity_crc()->Assign(held.crcs.begin(), held.crcs.end());
  const uint64_t all = held.crcs.size();
  const uint64_t chunk_bytes = response.layout().chunk_bytes();
  const uint64_t chunks = request.chunks() != 0 ? request.chunks() : all;
  if (request.first_chunk() > all || chunks > all - request.first_chunk())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("job ", job, ": a parity of ", all, " chunks"));
  CKPTD_ASSIGN_OR_RETURN(const Reading* reading, Read({peer, job, request.copy().rank(), id, 0}, place, std::move(held),
                                                      request.first_chunk() * chunk_bytes, chunks * chunk_bytes));
  CKPTD_ASSIGN_OR_RETURN(const auto token, handler_.issue(reading->name));
  response.set_token(token.data(), token.size());
  response.set_slot(reading->name.slot);
  return response;
}

// The one that is there, if it is asked for again: its transfer goes on. Each is remembered for a while.
absl::StatusOr<ParityReads::Reading*> ParityReads::Read(const transport::TransferName& name, const ParityPlace& place,
                                                        HeldParity held, uint64_t begin, uint64_t bytes) {
  size_t ranges = 0;
  for (auto& [number, reading] : readings_) {
    transport::TransferName same = name;
    same.slot = number;
    if (reading.name != same || reading.place != place) continue;
    ++ranges;
    if (reading.begin != begin || reading.bytes != bytes) continue;
    reading.touched = clock_.Monotonic();
    return &reading;
  }
  if (ranges >= most_ranges_)
    return Error(ErrorCode::BUSY,
                 absl::StrCat("job ", name.job, " rank ", name.rank, " step ", name.snapshot.step, ": node ", name.peer,
                              " has asked for ", ranges, " ranges of the parity of stripe ", place.stripe, " already"));
  const uint32_t number = handler_.number();
  Reading& reading = readings_[number];
  reading = {name, place, std::move(held), begin, bytes, clock_.Monotonic()};
  reading.name.slot = number;
  return &reading;
}

std::optional<transport::BulkEnd> ParityReads::Redeem(const transport::TransferName& name) {
  const auto found = readings_.find(name.slot);
  if (found == readings_.end() || found->second.name != name) return std::nullopt;
  Reading& reading = found->second;
  reading.touched = clock_.Monotonic();
  const uint64_t chunk_bytes = reading.held.contents.members(0).layout().chunk_bytes();
  transport::BulkEnd end;
  end.name = reading.name;
  end.image_bytes = reading.bytes;
  end.chunk_bytes = chunk_bytes;
  transport::ServedSend send;
  send.source.read = [file = reading.held.file, begin = reading.begin](uint64_t offset, std::span<std::byte> into) {
    return file->Read(begin + offset, into);
  };
  send.source.keep = OnLoop(loop_, reading.held.keep);
  send.source.file = {reading.held.file->read_fd(), reading.begin};
  send.limits.deadline = clock_.Monotonic() + transport::kLongestTransfer;
  const auto first = reading.held.crcs.begin() + static_cast<ptrdiff_t>(reading.begin / chunk_bytes);
  send.chunk_crcs.assign(first, first + static_cast<ptrdiff_t>(reading.bytes / chunk_bytes));
  end.end = std::move(send);
  end.done = scope_.Bind([this, number = name.slot](const absl::Status& status) {
    if (status.ok()) readings_.erase(number);
  });
  end.wanted = [there = std::weak_ptr<const char>(reading.there)] { return !there.expired(); };
  return end;
}

// What is read at this moment keeps its slot by itself; what broke off does not wait for its next connection.
void ParityReads::HaveLoaded(const std::string& job) {
  std::erase_if(readings_, [&](const auto& entry) { return entry.second.name.job == job; });
}

void ParityReads::Sweep() {
  const Nanos now = clock_.Monotonic();
  for (auto& [number, reading] : readings_) {
    if (reading.held.keep.use_count() > 1) reading.touched = now;
  }
  std::erase_if(readings_, [&](const auto& entry) { return now - entry.second.touched > kNobodyReads; });
}

}  // namespace ckptd::protect
