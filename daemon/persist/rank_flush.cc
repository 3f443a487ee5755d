#include "daemon/persist/rank_flush.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/storage/step_files.h"

namespace ckptd {

RankFlush::RankFlush(Store& store, const Clock& clock, const FlushSource& source, const std::atomic<bool>* cancel)
    : store_(store), clock_(clock), source_(source), cancel_(cancel), parts_(source.images.size()) {}

std::string RankFlush::ImageName(size_t image) const {
  return InStep(source_.job, source_.id, ImageFileName(source_.rank, source_.world, static_cast<uint32_t>(image)));
}

absl::Status RankFlush::CheckWanted() const {
  if (cancel_ == nullptr || !cancel_->load()) return absl::OkStatus();
  return Error(ErrorCode::CANCELLED, absl::StrCat("job ", source_.job, " rank ", source_.rank, ": the flush of step ",
                                                  ToString(source_.id), " was given up"));
}

absl::Status RankFlush::WriteChunk(uint32_t chunk) {
  CKPTD_FP("flush.chunk");
  CKPTD_RETURN_IF_ERROR(CheckWanted());
  uint64_t begin = uint64_t{chunk} * source_.chunk_bytes;
  uint64_t end = std::min<uint64_t>(begin + source_.chunk_bytes, source_.slot.size());
  for (size_t i = 0; i < source_.images.size(); ++i) {
    const ImageExtent& image = source_.images[i];
    uint64_t from = std::max(begin, image.offset);
    uint64_t to = std::min(end, image.offset + image.bytes);
    if (from < to) CKPTD_RETURN_IF_ERROR(WriteRange(i, from, to));
  }
  return absl::OkStatus();
}

absl::Status RankFlush::Begin(size_t image) {
  const std::string name = ImageName(image);
  if (source_.again) {
    absl::Status found = store_.Stat(name).status();
    parts_[image].there = found.ok();
    if (!absl::IsNotFound(found)) return found;
  }
  CKPTD_ASSIGN_OR_RETURN(parts_[image].writer, store_.OpenForWrite(name, source_.images[image].bytes));
  return absl::OkStatus();
}

absl::Status RankFlush::WriteRange(size_t image, uint64_t begin, uint64_t end) {
  const Part& part = parts_[image];
  if (!part.writer && !part.there) CKPTD_RETURN_IF_ERROR(Begin(image));
  if (part.there) return absl::OkStatus();
  return part.writer->Write(begin - source_.images[image].offset, source_.slot.subspan(begin, end - begin));
}

// kAlreadyExists: another one had published the name before, and it is durable.
absl::Status RankFlush::PublishImage(size_t image) {
  Part& part = parts_[image];
  if (part.there) {
    CKPTD_RETURN_IF_ERROR(store_.Confirm(ImageName(image)));
    return {absl::StatusCode::kAlreadyExists, ""};
  }
  if (!part.writer) {
    return Error(ErrorCode::INTERNAL, absl::StrCat(ImageName(image), ": finished before it was written"));
  }
  absl::Status status = part.writer->Finish();
  part.writer.reset();
  CKPTD_FP("flush.after_image");
  return status;
}

// True when another one had published a name of ours before.
absl::StatusOr<bool> RankFlush::PublishImages() {
  bool existed = false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    CKPTD_RETURN_IF_ERROR(CheckWanted());
    absl::Status status = PublishImage(i);
    if (absl::IsAlreadyExists(status)) {
      existed = true;
    } else if (!status.ok()) {
      return status;
    }
  }
  return existed;
}

v1::Sidecar RankFlush::BuildSidecar(const FlushSeal& seal) const {
  v1::Sidecar sidecar;
  sidecar.set_job(source_.job);
  sidecar.set_rank(source_.rank);
  sidecar.set_world_size(source_.world);
  sidecar.set_attempt(source_.id.attempt);
  sidecar.set_step(source_.id.step);
  sidecar.set_parent_attempt(seal.parent.attempt);
  sidecar.set_parent_step(seal.parent.step);
  for (size_t i = 0; i < source_.images.size(); ++i) {
    v1::SidecarImage* image = sidecar.add_images();
    image->set_name(ImageFileName(source_.rank, source_.world, static_cast<uint32_t>(i)));
    image->set_bytes(source_.images[i].bytes);
    image->set_header_bytes(source_.images[i].header_bytes);
  }
  sidecar.set_chunk_bytes(source_.chunk_bytes);
  sidecar.set_slot_bytes(source_.slot.size());
  sidecar.mutable_chunk_crc32c()->Add(seal.chunk_crcs.begin(), seal.chunk_crcs.end());
  sidecar.set_trace_id(seal.trace);
  sidecar.set_captured_unix_ns(seal.captured_unix_ns);
  sidecar.set_flushed_unix_ns(clock_.Wall().count());
  sidecar.set_header_crc32c(source_.header_crc);
  return sidecar;
}

absl::Status RankFlush::CheckSameBytes(const FlushSeal& seal) {
  StoredRank there = ToStoredRank(source_.job, BuildSidecar(seal));
  CheckedReadOptions options;
  options.cancel = cancel_;
  return ReadChecked(store_, there, options);
}

// Two sidecars of one rank and snapshot differ in their times at most.
absl::Status RankFlush::CreateSidecar(const FlushSeal& seal) {
  std::string name = InStep(source_.job, source_.id, SidecarFileName(source_.rank, source_.world));
  absl::Status status = store_.CreateExclusive(name, SidecarText(BuildSidecar(seal)));
  CKPTD_FP("flush.after_sidecar");
  if (!absl::IsAlreadyExists(status)) return status;
  CKPTD_ASSIGN_OR_RETURN(auto there, ReadSidecar(store_, source_.job, source_.id, source_.rank, source_.world));
  bool same =
      there.chunk_bytes() == source_.chunk_bytes && std::equal(there.chunk_crc32c().begin(), there.chunk_crc32c().end(),
                                                               seal.chunk_crcs.begin(), seal.chunk_crcs.end());
  if (same) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat(name, ": another content was stored under this name"));
}

absl::Status RankFlush::Finish(const FlushSeal& seal) {
  CKPTD_FP("flush.before_finish");
  CKPTD_ASSIGN_OR_RETURN(bool existed, PublishImages());
  if (existed) CKPTD_RETURN_IF_ERROR(CheckSameBytes(seal));
  return CreateSidecar(seal);
}

}  // namespace ckptd
