#include "daemon/storage/checked_read.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/io_queue.h"

namespace ckptd {
namespace {

constexpr uint64_t kWindowBytes = 64 * kMiB;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

AlignedMemory AllocateAligned(uint64_t bytes) {
  return AlignedMemory(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, RoundUp(bytes, kDirectAlignment))));
}

// The checksum of a chunk from its pieces, which arrive in any order.
class ChunkSum {
 public:
  void Add(uint64_t offset, uint32_t crc, uint64_t bytes) { pieces_.push_back({offset, crc, bytes}); }

  [[nodiscard]] uint32_t Combined() {
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    uint32_t crc = 0;
    for (const Piece& piece : pieces_) crc = Crc32cCombine(crc, piece.crc, piece.bytes);
    return crc;
  }

 private:
  struct Piece {
    uint64_t offset;
    uint32_t crc;
    uint64_t bytes;
  };
  std::vector<Piece> pieces_;
};

class CheckedReader {
 public:
  CheckedReader(Store& store, const StoredRank& rank, const CheckedReadOptions& options)
      : store_(store), rank_(rank), options_(options), sums_(rank.chunk_crcs.size()), told_(sums_.size()) {}

  absl::Status Run() {
    uint64_t slot_offset = 0;
    for (const StoredPart& part : rank_.parts) {
      absl::Status status = ReadPart(part, slot_offset);
      if (!status.ok() && (!options_.on_bad || CodeOf(status) == ErrorCode::CANCELLED)) return status;
      if (!status.ok()) TellUnreadable(part, slot_offset, status);
      slot_offset += part.bytes;
    }
    return CheckSums();
  }

 private:
  absl::Status ReadPart(const StoredPart& part, uint64_t slot_offset) {
    CKPTD_ASSIGN_OR_RETURN(auto reader, store_.OpenForRead(part.name));
    if (reader->size() != part.bytes) {
      return Error(ErrorCode::CORRUPT, absl::StrCat(part.name, ": ", reader->size(), " bytes, was ", part.bytes));
    }
    for (uint64_t done = 0; done < part.bytes;) {
      uint64_t length = std::min(WindowFrom(slot_offset + done), part.bytes - done);
      CKPTD_RETURN_IF_ERROR(ReadWindow(*reader, slot_offset, done, length));
      done += length;
    }
    return absl::OkStatus();
  }

  // Windows end on chunk boundaries, so that the pieces of every read but the first of a part are whole chunks.
  [[nodiscard]] uint64_t WindowFrom(uint64_t at) const {
    uint64_t into_chunk = at % rank_.chunk_bytes;
    if (into_chunk != 0) return rank_.chunk_bytes - into_chunk;
    return std::max(kWindowBytes / rank_.chunk_bytes, uint64_t{1}) * rank_.chunk_bytes;
  }

  absl::Status ReadWindow(PartReader& reader, uint64_t part_offset, uint64_t offset, uint64_t length) {
    if (options_.cancel && options_.cancel->load()) return Error(ErrorCode::CANCELLED, "read cancelled");
    if (!buffer_) buffer_ = AllocateAligned(std::max(kWindowBytes, rank_.chunk_bytes));
    if (!buffer_) return Error(ErrorCode::REGION_FULL, "no memory for reading from storage");
    std::span<std::byte> memory(buffer_.get(), length);
    return reader.Read(offset, memory, rank_.chunk_bytes,
                       [&](uint64_t at, std::span<std::byte> bytes) { return TakePiece(part_offset + at, bytes); });
  }

  absl::Status TakePiece(uint64_t slot_offset, std::span<const std::byte> bytes) {
    sums_[slot_offset / rank_.chunk_bytes].Add(slot_offset, Crc32c(0, bytes.data(), bytes.size()), bytes.size());
    done_ += bytes.size();
    if (options_.progress) options_.progress(done_);
    return options_.sink ? options_.sink(slot_offset, bytes) : absl::OkStatus();
  }

  absl::Status CheckSums() {
    for (size_t i = 0; i < sums_.size(); ++i) {
      if (sums_[i].Combined() == rank_.chunk_crcs[i]) continue;
      BadChunk bad = Describe(i * rank_.chunk_bytes);
      if (!options_.on_bad)
        return Error(ErrorCode::CORRUPT, absl::StrCat(bad.part, " at ", bad.offset, ": ", bad.reason));
      if (!told_[i]) options_.on_bad(bad);
    }
    return absl::OkStatus();
  }

  // Its chunks are not told again one by one.
  void TellUnreadable(const StoredPart& part, uint64_t slot_offset, const absl::Status& status) {
    options_.on_bad({part.name, 0, part.bytes, std::string(status.message())});
    for (uint64_t at = slot_offset; at < slot_offset + part.bytes; at += kDirectAlignment) {
      told_[at / rank_.chunk_bytes] = true;
    }
  }

  [[nodiscard]] BadChunk Describe(uint64_t slot_offset) const {
    uint64_t start = 0;
    for (const StoredPart& part : rank_.parts) {
      if (slot_offset < start + part.bytes) {
        uint64_t bytes = std::min(rank_.chunk_bytes, rank_.bytes() - slot_offset);
        return {part.name, slot_offset - start, bytes, "checksum does not match what was saved"};
      }
      start += part.bytes;
    }
    return {};
  }

  Store& store_;
  const StoredRank& rank_;
  const CheckedReadOptions& options_;
  std::vector<ChunkSum> sums_;
  std::vector<bool> told_;  // by chunk: lies in a part that could not be read
  AlignedMemory buffer_;
  uint64_t done_ = 0;
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
  return CheckedReader(store, rank, options).Run();
}

}  // namespace ckptd
