#include "daemon/protect/parity_work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "proto/local/region.h"

namespace ckptd::protect {
namespace {

constexpr uint64_t kRecordRoom = 256;  // of a member, beside its layout and checksums
constexpr uint64_t kContentsRoom = 64;

uint64_t RoundTo(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// No less than what ParityContents takes.
uint64_t ContentsRoom(const std::vector<v1::CopyLayout>& layouts) {
  uint64_t room = sizeof(uint32_t) + kContentsRoom;
  for (const v1::CopyLayout& layout : layouts) {
    const uint64_t chunks = (layout.slot_bytes() - 1) / layout.chunk_bytes() + 1;
    room += layout.ByteSizeLong() + chunks * sizeof(uint32_t) + kRecordRoom;
  }
  return RoundTo(room, kImageAlignment);
}

}  // namespace

uint64_t ParityBytes(const ParityPlace& place, const std::vector<uint64_t>& image_bytes, uint64_t chunk_bytes) {
  const std::vector<Rank> ranks = place.DataRanks();
  uint64_t longest = 0;
  for (size_t i = 0; i < ranks.size(); ++i)
    longest = std::max(longest, BlockGivenBy(place, ranks[i], image_bytes[i], chunk_bytes).size);
  return RoundTo(longest, chunk_bytes);
}

absl::StatusOr<ParitySizes> SizesOf(const ParityPlace& place, const std::vector<v1::CopyLayout>& layouts) {
  ParitySizes sizes;
  sizes.chunk_bytes = layouts[0].chunk_bytes();
  std::vector<uint64_t> images;
  const std::vector<Rank> ranks = place.DataRanks();
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i].chunk_bytes() != sizes.chunk_bytes)
      return Error(ErrorCode::INVALID_ARGUMENT,
                   absl::StrCat("parity of ranks with chunks of ", sizes.chunk_bytes, " and ", layouts[i].chunk_bytes(),
                                " bytes: set region.chunk_bytes to one number on all nodes"));
    images.push_back(layouts[i].slot_bytes());
    sizes.blocks.push_back(BlockGivenBy(place, ranks[i], images.back(), sizes.chunk_bytes).size);
  }
  sizes.parity_bytes = ParityBytes(place, images, sizes.chunk_bytes);
  sizes.slot_bytes = sizes.parity_bytes + ContentsRoom(layouts);
  if ((sizes.slot_bytes - 1) / sizes.chunk_bytes < kMaxChunks) return sizes;
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("a parity of ", sizes.slot_bytes, " bytes in chunks of ",
                                                         sizes.chunk_bytes, " is more than a slot may have"));
}

absl::StatusOr<v1::ParityContents> ReadContents(const region::SlotFile& file, uint64_t slot_bytes,
                                                uint64_t parity_bytes) {
  uint32_t length = 0;
  if (parity_bytes > slot_bytes || slot_bytes - parity_bytes < sizeof(length))
    return Error(ErrorCode::CORRUPT, absl::StrCat("parity of ", parity_bytes, " in a slot of ", slot_bytes, " bytes"));
  CKPTD_RETURN_IF_ERROR(file.Read(parity_bytes, std::as_writable_bytes(std::span(&length, 1))));
  if (length > slot_bytes - parity_bytes - sizeof(length))
    return Error(ErrorCode::CORRUPT, absl::StrCat("what a parity was made of has ", length, " bytes"));
  std::string bytes(length, '\0');
  CKPTD_RETURN_IF_ERROR(file.Read(parity_bytes + sizeof(length), std::as_writable_bytes(std::span(bytes))));
  v1::ParityContents contents;
  if (contents.ParseFromString(bytes) && contents.parity_bytes() == parity_bytes) return contents;
  return Error(ErrorCode::CORRUPT, "what a parity was made of cannot be read");
}

absl::StatusOr<std::shared_ptr<ParityWork>> ParityWork::Make(const ParityPlace& place, ParitySizes sizes,
                                                             std::shared_ptr<region::PeerFill> fill) {
  CKPTD_ASSIGN_OR_RETURN(erasure::Code code, erasure::Code::MakeRow(place.shape, place.row));
  const uint64_t longest = *std::max_element(sizes.blocks.begin(), sizes.blocks.end());
  std::shared_ptr<ParityWork> work(new ParityWork(std::move(code), std::move(sizes), std::move(fill)));
  if (longest == 0) return work;
  const std::span<std::byte> parity = work->fill_->bytes().first(work->sizes_.parity_bytes);
  std::ranges::fill(parity.subspan(longest), std::byte{0});
  MutexLock lock(work->mutex_);
  CKPTD_ASSIGN_OR_RETURN(
      work->encoder_,
      erasure::Encoder::Make(work->code_, {work->sizes_.blocks, work->sizes_.chunk_bytes}, {parity.first(longest)}));
  return work;
}

ParityWork::ParityWork(erasure::Code code, ParitySizes sizes, std::shared_ptr<region::PeerFill> fill)
    : code_(std::move(code)), sizes_(std::move(sizes)), fill_(std::move(fill)), sums_(fill_->chunk_count()) {
  for (const uint64_t bytes : sizes_.blocks) crcs_.emplace_back((bytes + sizes_.chunk_bytes - 1) / sizes_.chunk_bytes);
}

absl::Status ParityWork::Fold(uint32_t data, uint32_t chunk, uint32_t crc, std::span<const std::byte> bytes) {
  const std::string& name = fill_->place().name;
  MutexLock lock(mutex_);
  if (fill_->fenced()) return Error(ErrorCode::FENCED, absl::StrCat(name, ": this parity is not wanted any more"));
  if (data >= crcs_.size() || chunk >= crcs_[data].size())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(name, ": member ", data, " gives no chunk ", chunk));
  std::optional<uint32_t>& in = crcs_[data][chunk];
  contradicted_ = contradicted_ || (in && *in != crc);
  if (in && *in != crc)
    return Error(ErrorCode::CORRUPT, absl::StrCat(name, ": chunk ", chunk, " of member ", data,
                                                  " came twice, and is "
                                                  "another one now"));
  if (in) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(encoder_->Fold(data, chunk, bytes));
  in = crc;
  ++folded_;
  return encoder_->Missing(chunk) == 0 ? Sum(chunk) : absl::OkStatus();
}

absl::Status ParityWork::Sum(uint64_t chunk) {
  CKPTD_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, fill_->Chunk(chunk));
  sums_[chunk] = Crc32c(0, bytes.data(), bytes.size());
  return fill_->ChunkVerified(chunk, sums_[chunk]);
}

absl::Status ParityWork::CheckBlock(uint32_t data, std::span<const uint32_t> crcs) {
  const std::string& name = fill_->place().name;
  MutexLock lock(mutex_);
  if (data >= crcs_.size() || crcs.size() != crcs_[data].size())
    return Error(ErrorCode::CORRUPT, absl::StrCat(name, ": member ", data, " gives no ", crcs.size(), " chunks"));
  for (size_t i = 0; i < crcs.size(); ++i) {
    const std::optional<uint32_t>& in = crcs_[data][i];
    if (!in) return Error(ErrorCode::REFUSED, absl::StrCat(name, ": chunk ", i, " of member ", data, " is missing"));
    contradicted_ = contradicted_ || *in != crcs[i];
    if (*in != crcs[i])
      return Error(ErrorCode::CORRUPT, absl::StrCat(name, ": chunk ", i, " of member ", data, " is not its record's"));
  }
  return absl::OkStatus();
}

bool ParityWork::contradicted() {
  MutexLock lock(mutex_);
  return contradicted_;
}

size_t ParityWork::folded() {
  MutexLock lock(mutex_);
  return folded_;
}

absl::StatusOr<uint32_t> ParityWork::Finish(v1::ParityContents contents) {
  contents.set_parity_bytes(sizes_.parity_bytes);
  const std::string bytes = contents.SerializeAsString();
  const auto length = static_cast<uint32_t>(bytes.size());
  const std::span<std::byte> room = fill_->bytes().subspan(sizes_.contents_begin());
  if (bytes.size() > room.size() - sizeof(length))
    return Error(ErrorCode::INTERNAL, absl::StrCat(fill_->place().name, ": ", bytes.size(), " bytes of contents have ",
                                                   room.size(), " bytes of room"));
  std::memcpy(room.data(), &length, sizeof(length));
  std::memcpy(room.data() + sizeof(length), bytes.data(), bytes.size());
  std::ranges::fill(room.subspan(sizeof(length) + bytes.size()), std::byte{0});
  MutexLock lock(mutex_);
  for (uint64_t chunk = sizes_.contents_begin() / sizes_.chunk_bytes; chunk < sums_.size(); ++chunk)
    CKPTD_RETURN_IF_ERROR(Sum(chunk));
  return region::RootCrc(sums_);
}

}  // namespace ckptd::protect
