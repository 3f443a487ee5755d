#include "daemon/format/header_reader.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

std::string_view Std(absl::string_view text) { return {text.data(), text.size()}; }

ErrorCode CodeFor(ImageErrorKind kind, ErrorCode otherwise) {
  switch (kind) {
    case ImageErrorKind::kOk:
      return ErrorCode::OK;
    case ImageErrorKind::kLimit:
      return ErrorCode::REFUSED;
    case ImageErrorKind::kRead:
      return ErrorCode::STORAGE_IO;
    default:
      return otherwise;
  }
}

// `damaged` is what a header that breaks the rules of the format means here.
absl::Status AsStatus(const ImageError& error, ErrorCode damaged, absl::string_view origin) {
  if (error.ok()) return absl::OkStatus();
  return Error(CodeFor(error.kind, damaged),
               absl::StrCat(origin, ": safetensors header, byte ", error.offset, ": ", error.message));
}

}  // namespace

std::string HeaderOrigin(absl::string_view job, Rank rank) { return absl::StrCat("job ", job, " rank ", rank); }

absl::StatusOr<std::vector<ImageInfo>> ReadLayoutHeaders(absl::string_view headers, uint64_t max_slot_bytes,
                                                         absl::string_view origin, const HeaderLimits& limits) {
  std::vector<ImageInfo> images;
  ImageError error = ParseHeaders(Std(headers), max_slot_bytes, limits, &images);
  if (!error.ok()) return AsStatus(error, ErrorCode::INVALID_ARGUMENT, origin);
  return images;
}

absl::StatusOr<std::vector<ImageInfo>> ReadSlotHeaders(uint64_t slot_bytes, const ReadAt& read,
                                                       absl::string_view origin, const HeaderLimits& limits) {
  std::vector<ImageInfo> images;
  ImageError error = WalkImages(slot_bytes, read, limits, &images);
  if (!error.ok()) return AsStatus(error, ErrorCode::CORRUPT, origin);
  return images;
}

absl::StatusOr<ImageInfo> ReadFileHeader(absl::string_view header, uint64_t file_bytes, absl::string_view origin,
                                         const HeaderLimits& limits) {
  ImageInfo info;
  ImageError error = ParseHeader(Std(header), file_bytes, ImageEnd::kExact, limits, &info);
  if (!error.ok()) return AsStatus(error, ErrorCode::CORRUPT, origin);
  return info;
}

absl::StatusOr<uint64_t> FileHeaderBytes(absl::string_view first_bytes, uint64_t file_bytes, absl::string_view origin,
                                         const HeaderLimits& limits) {
  uint64_t bytes = 0;
  ImageError error = HeaderBytes(Std(first_bytes), file_bytes, limits, &bytes);
  if (!error.ok()) return AsStatus(error, ErrorCode::CORRUPT, origin);
  return bytes;
}

}  // namespace ckptd
