#include "daemon/protect/stripe_rebuild.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::protect {

StripeRebuild::StripeRebuild(erasure::Decoder decoder, Stretch stretch, std::vector<Input> inputs)
    : decoder_(std::move(decoder)),
      stretch_(std::move(stretch)),
      inputs_(std::move(inputs)),
      missing_(stretch_.crcs.size()),
      rebuilt_(stretch_.rebuilt) {
  for (const Input& input : inputs_) {
    came_.emplace_back(input.crcs.size());
    for (size_t chunk = 0; chunk < input.crcs.size(); ++chunk) ++missing_[chunk];
  }
}

absl::StatusOr<std::shared_ptr<StripeRebuild>> StripeRebuild::Make(erasure::Decoder decoder, Stretch stretch,
                                                                   std::vector<Input> inputs) {
  std::vector<std::optional<Scratch>> scratch;
  for (const Input& input : inputs) {
    scratch.emplace_back();
    if (input.crcs.size() > stretch.crcs.size())
      return Error(ErrorCode::INTERNAL, absl::StrCat(stretch.name, ": more than the stretch was asked for"));
    if (input.bytes == 0) continue;
    CKPTD_ASSIGN_OR_RETURN(scratch.back(), Scratch::Make(input.bytes));
  }
  std::shared_ptr<StripeRebuild> made(new StripeRebuild(std::move(decoder), std::move(stretch), std::move(inputs)));
  made->scratch_ = std::move(scratch);
  return made;
}

std::span<std::byte> StripeRebuild::bytes(size_t input) const {
  return scratch_[input] ? scratch_[input]->bytes() : std::span<std::byte>();
}

absl::Status StripeRebuild::Came(size_t input, uint32_t chunk, uint32_t crc) {
  const std::vector<uint32_t>& crcs = inputs_[input].crcs;
  if (chunk >= crcs.size() || crc != crcs[chunk])
    return Error(ErrorCode::CORRUPT, absl::StrCat(stretch_.name, ": chunk ", chunk,
                                                  " of a source is not the one that its record tells of"));
  if (stopped()) return Error(ErrorCode::FENCED, absl::StrCat(stretch_.name, ": not wanted any more"));
  return IsLast(input, chunk) ? Rebuild(chunk) : absl::OkStatus();
}

bool StripeRebuild::IsLast(size_t input, uint32_t chunk) {
  MutexLock lock(mutex_);
  if (stopped_ || came_[input][chunk]) return false;
  came_[input][chunk] = true;
  return --missing_[chunk] == 0;
}

absl::Status StripeRebuild::Decode(uint32_t chunk, std::span<std::byte> into) const {
  const uint64_t offset = chunk * stretch_.chunk_bytes;
  std::vector<erasure::ConstBytes> pieces;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const uint64_t length = erasure::PieceBytes(inputs_[i].bytes, offset, stretch_.chunk_bytes);
    pieces.push_back(length == 0 ? erasure::ConstBytes() : erasure::ConstBytes(bytes(i).subspan(offset, length)));
  }
  const erasure::Bytes out(into);
  CKPTD_RETURN_IF_ERROR(decoder_.Rebuild(pieces, {&out, 1}));
  return erasure::CheckCrc(into, stretch_.crcs[chunk], absl::StrCat(stretch_.name, ": a rebuilt chunk"));
}

absl::Status StripeRebuild::Rebuild(uint32_t chunk) {
  const uint64_t offset = chunk * stretch_.chunk_bytes;
  const uint64_t length = erasure::PieceBytes(stretch_.bytes, offset, stretch_.chunk_bytes);
  absl::Status made;
  absl::Status written;
  if (!stretch_.rebuilt[chunk]) {
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(length);
    const std::span<std::byte> bytes(buffer.get(), length);
    made = Decode(chunk, bytes);
    if (made.ok()) written = stretch_.file->Write(stretch_.begin + offset, bytes);
  }
  Discard(chunk);
  MutexLock lock(mutex_);
  mismatch_.Update(made);
  failed_.Update(written);
  rebuilt_[chunk] = made.ok() && written.ok();
  stopped_ = stopped_ || !rebuilt_[chunk];
  made.Update(written);
  return made;
}

void StripeRebuild::Discard(uint32_t chunk) {
  for (std::optional<Scratch>& scratch : scratch_) {
    if (scratch) scratch->Discard(chunk * stretch_.chunk_bytes, stretch_.chunk_bytes);
  }
}

void StripeRebuild::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

bool StripeRebuild::stopped() const {
  MutexLock lock(mutex_);
  return stopped_;
}

std::vector<bool> StripeRebuild::rebuilt() const {
  MutexLock lock(mutex_);
  return rebuilt_;
}

absl::Status StripeRebuild::failed() const {
  MutexLock lock(mutex_);
  return failed_;
}

absl::Status StripeRebuild::mismatch() const {
  MutexLock lock(mutex_);
  return mismatch_;
}

}  // namespace ckptd::protect
