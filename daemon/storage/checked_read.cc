#include "daemon/storage/checked_read.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/io_queue.h"

namespace ckptd {
namespace {

// Bad sectors are told as STORAGE_IO, too.
bool IsOfThePart(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  return code == ErrorCode::CORRUPT || code == ErrorCode::NOT_FOUND || code == ErrorCode::STORAGE_IO;
}

class CheckedReader {
 public:
  CheckedReader(Store& store, const StoredRank& rank, const CheckedReadOptions& options)
      : store_(store), rank_(rank), options_(options), total_(rank.bytes()) {
    const size_t behind = rank.chunk_crcs.size() - options.first_chunk;
    const size_t chunks = options.chunks == 0 ? behind : std::min(options.chunks, behind);
    from_ = options.first_chunk * rank.chunk_bytes;
    to_ = std::min(total_, from_ + chunks * rank.chunk_bytes);
    if (options.chunk_sink) whole_.resize(rank.chunk_bytes);
  }

  absl::Status Run() {
    uint64_t begin = 0;
    for (const StoredPart& part : rank_.parts) {
      const bool wanted = begin < to_ && begin + part.bytes > from_;
      absl::Status status = wanted ? ReadPart(part, begin) : absl::OkStatus();
      if (!status.ok() && !(options_.on_bad && IsOfThePart(status))) return status;
      if (!status.ok()) SkipPart(part, begin, status);
      begin += part.bytes;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadPart(const StoredPart& part, uint64_t begin) {
    CKPTD_ASSIGN_OR_RETURN(auto reader, store_.OpenForRead(part.name));
    if (reader->size() != part.bytes) {
      return Error(ErrorCode::CORRUPT, absl::StrCat(part.name, ": ", reader->size(), " bytes, was ", part.bytes));
    }
    const uint64_t first = std::max(begin, from_) - begin;
    const uint64_t length = std::min(begin + part.bytes, to_) - begin - first;
    return reader->Scan(first, length,
                        [&](uint64_t at, std::span<std::byte> bytes) { return Take(begin + at, bytes); });
  }

  absl::Status Take(uint64_t slot_offset, std::span<const std::byte> bytes) {
    if (options_.cancel && options_.cancel->load()) return Error(ErrorCode::CANCELLED, "read cancelled");
    if (options_.sink) CKPTD_RETURN_IF_ERROR(options_.sink(slot_offset, bytes));
    at_ = slot_offset;
    while (!bytes.empty()) {
      const uint64_t left_of_chunk = rank_.chunk_bytes - at_ % rank_.chunk_bytes;
      const size_t length = std::min<uint64_t>(bytes.size(), left_of_chunk);
      crc_ = Crc32c(crc_, bytes.data(), length);
      if (!whole_.empty()) std::memcpy(whole_.data() + at_ % rank_.chunk_bytes, bytes.data(), length);
      at_ += length;
      done_ += length;
      bytes = bytes.subspan(length);
      if (length == left_of_chunk || at_ == total_) CKPTD_RETURN_IF_ERROR(EndChunk());
    }
    if (options_.progress) options_.progress(done_);
    return absl::OkStatus();
  }

  // All bytes before at_ have been seen, or belong to a part that was told as unreadable.
  absl::Status EndChunk() {
    const uint64_t chunk = (at_ - 1) / rank_.chunk_bytes;
    const bool good = incomplete_ || crc_ == rank_.chunk_crcs[chunk];
    crc_ = 0;
    incomplete_ = false;
    if (good && whole_.empty()) return absl::OkStatus();
    if (good) return options_.chunk_sink(chunk, std::span(whole_).first(at_ - chunk * rank_.chunk_bytes));
    BadChunk bad = Describe(chunk * rank_.chunk_bytes);
    if (!options_.on_bad)
      return Error(ErrorCode::CORRUPT, absl::StrCat(bad.part, " at ", bad.offset, ": ", bad.reason));
    options_.on_bad(bad);
    return absl::OkStatus();
  }

  // Its chunks are not told again one by one.
  void SkipPart(const StoredPart& part, uint64_t begin, const absl::Status& status) {
    options_.on_bad({part.name, 0, part.bytes, std::string(status.message())});
    at_ = begin + part.bytes;
    crc_ = 0;
    incomplete_ = at_ % rank_.chunk_bytes != 0;
  }

  [[nodiscard]] BadChunk Describe(uint64_t slot_offset) const {
    uint64_t start = 0;
    for (const StoredPart& part : rank_.parts) {
      if (slot_offset < start + part.bytes) {
        uint64_t bytes = std::min(rank_.chunk_bytes, total_ - slot_offset);
        return {part.name, slot_offset - start, bytes, "checksum does not match what was saved"};
      }
      start += part.bytes;
    }
    return {};
  }

  Store& store_;
  const StoredRank& rank_;
  const CheckedReadOptions& options_;
  const uint64_t total_;
  uint64_t from_ = 0;  // of the slot
  uint64_t to_ = 0;
  std::vector<std::byte> whole_;  // the chunk that holds at_, for chunk_sink
  uint64_t at_ = 0;               // in the slot
  uint64_t done_ = 0;             // bytes seen
  uint32_t crc_ = 0;              // of what was seen of the chunk that holds at_
  bool incomplete_ = false;       // that chunk begins in a part that could not be read
};

}  // namespace

uint64_t StoredRank::bytes() const {
  uint64_t sum = 0;
  for (const StoredPart& part : parts) sum += part.bytes;
  return sum;
}

absl::Status ReadChecked(Store& store, const StoredRank& rank, const CheckedReadOptions& options) {
  uint64_t bytes = rank.bytes();
  bool sane = rank.chunk_bytes >= kDirectAlignment && rank.chunk_bytes <= kMaxIoBytes &&
              rank.chunk_crcs.size() == (bytes + rank.chunk_bytes - 1) / rank.chunk_bytes;
  if (!sane) return Error(ErrorCode::CORRUPT, "sidecar: chunk checksums do not cover the files");
  if (options.first_chunk != 0 && options.first_chunk >= rank.chunk_crcs.size())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("there is no chunk ", options.first_chunk));
  return CheckedReader(store, rank, options).Run();
}

}  // namespace ckptd
