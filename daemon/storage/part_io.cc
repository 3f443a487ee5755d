#include "daemon/storage/part_io.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

bool DirectCan(uint64_t offset, const std::byte* memory, uint64_t length) {
  return (offset | length | reinterpret_cast<uintptr_t>(memory)) % kDirectAlignment == 0;
}

bool Within(uint64_t offset, uint64_t length, uint64_t size) { return offset <= size && length <= size - offset; }

// Keeps the queue full of the pieces of one range, and hands each on when it has arrived.
class PieceReader {
 public:
  PieceReader(File& file, IoQueue& queue, uint64_t offset, std::span<std::byte> memory, size_t piece_bytes,
              const PartReader::OnPiece& on_piece)
      : file_(file), queue_(queue), offset_(offset), memory_(memory), piece_bytes_(piece_bytes), on_piece_(on_piece) {}

  absl::Status ReadAll() {
    size_t begin = 0;
    for (;;) {
      const bool more = status_.ok() && begin < memory_.size();
      if (more && queue_.in_flight() < queue_.depth()) {
        status_ = queue_.Submit(ReadRequest(file_, offset_ + begin, Piece(begin), begin));
        begin += piece_bytes_;
      } else if (queue_.in_flight() > 0) {
        Deliver();  // also after an error: the memory is the caller's again only when nothing is in flight
      } else {
        return status_;
      }
    }
  }

 private:
  std::span<std::byte> Piece(size_t begin) const {
    return memory_.subspan(begin, std::min(piece_bytes_, memory_.size() - begin));
  }

  void Deliver() {
    queue_.Wait(completions_);
    for (IoCompletion& done : completions_) {
      status_.Update(done.status);
      if (status_.ok() && on_piece_) status_ = on_piece_(offset_ + done.tag, Piece(done.tag));
    }
  }

  File& file_;
  IoQueue& queue_;
  const uint64_t offset_;
  const std::span<std::byte> memory_;
  const size_t piece_bytes_;
  const PartReader::OnPiece& on_piece_;
  std::vector<IoCompletion> completions_;
  absl::Status status_;
};

// Reads one range through a buffer of a few pieces, which are used in turn: piece i of the range lies in place
// i % places, and its place is read into again when it was handed on.
class Scanner {
 public:
  struct Range {
    uint64_t offset = 0;
    uint64_t length = 0;
  };
  Scanner(File& file, IoQueue& queue, Range range, std::byte* buffer, const PartReader::OnPiece& on_piece)
      : file_(file),
        queue_(queue),
        range_(range),
        buffer_(buffer),
        on_piece_(on_piece),
        places_(std::min(kPlaces, queue.depth())) {}

  absl::Status ScanAll() {
    const uint64_t pieces = (range_.length + kPiece - 1) / kPiece;
    uint64_t asked = 0;
    for (uint64_t next = 0; status_.ok() && next < pieces; ++next) {
      for (; status_.ok() && asked < std::min(pieces, next + places_); ++asked) status_ = Ask(asked);
      while (status_.ok() && !arrived_[next % places_]) Await();
      if (status_.ok()) status_ = HandOn(next);
    }
    while (queue_.in_flight() > 0) Await();  // the buffer is another one's afterwards
    return status_;
  }

 private:
  static constexpr size_t kPlaces = 4;
  static constexpr size_t kPiece = IoPool::kBufferBytes / kPlaces;

  std::span<std::byte> Piece(uint64_t index) const {
    return {buffer_ + index % places_ * kPiece,
            static_cast<size_t>(std::min<uint64_t>(kPiece, range_.length - index * kPiece))};
  }

  absl::Status Ask(uint64_t index) {
    arrived_[index % places_] = false;
    return queue_.Submit(ReadRequest(file_, range_.offset + index * kPiece, Piece(index), index));
  }

  void Await() {
    queue_.Wait(completions_);
    for (IoCompletion& done : completions_) {
      status_.Update(done.status);
      arrived_[done.tag % places_] = true;
    }
  }

  absl::Status HandOn(uint64_t index) { return on_piece_(range_.offset + index * kPiece, Piece(index)); }

  File& file_;
  IoQueue& queue_;
  const Range range_;
  std::byte* const buffer_;
  const PartReader::OnPiece& on_piece_;
  const size_t places_;
  std::array<bool, kPlaces> arrived_{};
  std::vector<IoCompletion> completions_;
  absl::Status status_;
};

}  // namespace

PosixPartWriter::PosixPartWriter(Publisher& publisher, TempFile temp, IoPool::Queue queue, Target target)
    : publisher_(publisher), target_(std::move(target)), temp_(std::move(temp)), queue_(std::move(queue)) {}

PosixPartWriter::~PosixPartWriter() {
  queue_.reset();
  if (temp_.file != nullptr) publisher_.Discard(std::move(temp_));
}

absl::Status PosixPartWriter::Write(uint64_t offset, std::span<const std::byte> bytes) {
  CKPTD_RETURN_IF_ERROR(failure_);
  CKPTD_RETURN_IF_ERROR(Fail(Check(offset, bytes)));
  for (size_t begin = 0; begin < bytes.size(); begin += target_.io_bytes) {
    const size_t length = std::min(target_.io_bytes, bytes.size() - begin);
    CKPTD_RETURN_IF_ERROR(Fail(Queue(offset + begin, bytes.subspan(begin, length))));
  }
  queued_bytes_ += bytes.size();
  return absl::OkStatus();
}

absl::Status PosixPartWriter::Sync() {
  CKPTD_RETURN_IF_ERROR(Fail(Drain()));
  if (queued_bytes_ != target_.size) {
    return Fail(Error(ErrorCode::INTERNAL, absl::StrCat(target_.final_path, ": ", queued_bytes_, " bytes written, ",
                                                        target_.size, " announced")));
  }
  return Fail(publisher_.MakeDurable(temp_));
}

absl::Status PosixPartWriter::Finish() {
  CKPTD_RETURN_IF_ERROR(Sync());
  return Fail(publisher_.Publish(std::move(temp_), target_.final_path));
}

absl::Status PosixPartWriter::Check(uint64_t offset, std::span<const std::byte> bytes) const {
  if (!Within(offset, bytes.size(), target_.size)) {
    return Error(ErrorCode::INTERNAL, absl::StrCat(target_.final_path, ": ", bytes.size(), " bytes at ", offset,
                                                   " of a part of ", target_.size));
  }
  if (target_.direct && !DirectCan(offset, bytes.data(), bytes.size())) {
    return Error(ErrorCode::INTERNAL, absl::StrCat(target_.final_path, ": unaligned write at ", offset));
  }
  return absl::OkStatus();
}

absl::Status PosixPartWriter::Queue(uint64_t offset, std::span<const std::byte> bytes) {
  while (queue_->in_flight() == queue_->depth()) CKPTD_RETURN_IF_ERROR(Reap());
  return queue_->Submit(WriteRequest(*temp_.file, offset, bytes, /*tag=*/offset));
}

absl::Status PosixPartWriter::Reap() {
  absl::Status status;
  queue_->Wait(completions_);
  for (IoCompletion& done : completions_) {
    status.Update(done.status);
    // What went through the page cache starts on its way now, not all at once in fsync.
    if (!target_.direct) temp_.file->StartWriteback(done.tag, target_.io_bytes);
  }
  return status;
}

absl::Status PosixPartWriter::Drain() {
  absl::Status status = failure_;
  while (queue_->in_flight() > 0) status.Update(Reap());
  return status;
}

absl::Status PosixPartWriter::Fail(absl::Status status) {
  failure_ = std::move(status);
  return failure_;
}

PosixPartReader::PosixPartReader(std::unique_ptr<File> buffered, std::unique_ptr<File> direct, uint64_t size,
                                 IoPool& pool)
    : buffered_(std::move(buffered)), direct_(std::move(direct)), size_(size), pool_(pool) {}

absl::Status PosixPartReader::Read(uint64_t offset, std::span<std::byte> memory, size_t piece_bytes,
                                   const OnPiece& on_piece) {
  CKPTD_RETURN_IF_ERROR(Check(offset, memory.size(), piece_bytes));
  CKPTD_ASSIGN_OR_RETURN(IoPool::Queue queue, pool_.BorrowQueue());
  const bool direct = direct_ != nullptr && DirectCan(offset | piece_bytes, memory.data(), memory.size());
  return PieceReader(direct ? *direct_ : *buffered_, *queue, offset, memory, piece_bytes, on_piece).ReadAll();
}

absl::Status PosixPartReader::Scan(uint64_t offset, uint64_t length, const OnPiece& on_piece) {
  CKPTD_RETURN_IF_ERROR(Check(offset, length, kMaxIoBytes));
  CKPTD_ASSIGN_OR_RETURN(IoPool::Buffer buffer, pool_.BorrowBuffer());
  CKPTD_ASSIGN_OR_RETURN(IoPool::Queue queue, pool_.BorrowQueue());
  const bool direct = direct_ != nullptr && DirectCan(offset, buffer.get(), length);
  return Scanner(direct ? *direct_ : *buffered_, *queue, {offset, length}, buffer.get(), on_piece).ScanAll();
}

absl::Status PosixPartReader::Check(uint64_t offset, uint64_t length, size_t piece_bytes) const {
  if (piece_bytes == 0 || piece_bytes > kMaxIoBytes) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(buffered_->path(), ": pieces of ", piece_bytes, " bytes"));
  }
  if (Within(offset, length, size_)) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT,
               absl::StrCat(buffered_->path(), ": ", length, " bytes at ", offset, " wanted, the file has ", size_));
}

}  // namespace ckptd
