#include "daemon/format/records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/json/printer.h"
#include "daemon/json/reader.h"
#include "proto/local/region.h"
#include "proto/local/version.h"

namespace ckptd {
namespace {

// The text is printed once with checksum 0; the checksum covers everything up to the member that holds it, so setting
// it does not change what it covers.
constexpr absl::string_view kCrcMember = "\"crc32c\":";

template <typename Message>
std::string CheckedText(Message& message) {
  message.set_format_major(kFormatMajor);
  message.set_format_minor(kFormatMinor);
  message.set_crc32c(0);
  std::string text = PrintJson(message, JsonStyle::kCompact);
  size_t at = text.rfind(std::string(kCrcMember));
  const uint32_t crc = Crc32c(0, text.data(), at);
  text.resize(at);
  absl::StrAppend(&text, kCrcMember, crc, "}");
  return text;
}

absl::Status Corrupt(absl::string_view name, absl::string_view why) {
  return Error(ErrorCode::CORRUPT, absl::StrCat(name, ": ", why));
}

absl::Status CheckChecksum(absl::string_view text, absl::string_view name) {
  size_t at = text.rfind(kCrcMember);
  if (at == absl::string_view::npos) return Corrupt(name, "has no checksum: cut off?");
  absl::string_view rest = text.substr(at + kCrcMember.size());
  uint32_t said = 0;
  size_t digits = rest.find_first_not_of("0123456789");
  bool closed = digits != absl::string_view::npos && absl::StripAsciiWhitespace(rest.substr(digits)) == "}";
  if (!closed || !absl::SimpleAtoi(rest.substr(0, digits), &said)) return Corrupt(name, "its checksum is unreadable");
  if (Crc32c(0, text.data(), at) != said) return Corrupt(name, "its checksum does not match");
  return absl::OkStatus();
}

absl::Status Newer(absl::string_view name, uint32_t major) {
  return Error(ErrorCode::NEWER_VERSION, absl::StrCat(name, ": format ", major, " is newer than ", kFormatMajor));
}

template <typename Message>
absl::StatusOr<Message> Parse(absl::string_view text, absl::string_view name, size_t max_bytes) {
  if (text.size() > max_bytes) return Corrupt(name, "is too large");
  CKPTD_RETURN_IF_ERROR(CheckChecksum(text, name));
  JsonLimits limits;
  limits.bytes = max_bytes;
  Message message;
  if (absl::Status status = ReadJson(text, limits, &message); !status.ok()) {
    // What a newer ckptd wrote need not read like what this one writes.
    v1::FormatMark mark;
    const bool newer = ReadJson(text, limits, &mark).ok() && mark.format_major() > kFormatMajor;
    return newer ? Newer(name, mark.format_major()) : Corrupt(name, status.message());
  }
  if (message.format_major() > kFormatMajor) return Newer(name, message.format_major());
  return message;
}

template <typename Record>
absl::StatusOr<Record> ParsePlain(absl::string_view text, absl::string_view name) {
  JsonLimits limits;
  limits.bytes = kMaxRecordBytes;
  Record record;
  if (absl::Status status = ReadJson(text, limits, &record); !status.ok()) return Corrupt(name, status.message());
  if (!CheckJobName(record.job()).ok() || record.attempt() == 0) return Corrupt(name, "names no job or attempt");
  return record;
}

template <typename Message>
absl::Status CheckHead(const Message& message, absl::string_view name) {
  if (!CheckJobName(message.job()).ok()) return Corrupt(name, "bad job name");
  if (message.attempt() == 0) return Corrupt(name, "attempt 0");
  if (message.world_size() == 0 || message.world_size() > (1u << 16)) return Corrupt(name, "bad world size");
  return absl::OkStatus();
}

// Sums without overflow: every size is bounded first.
constexpr uint64_t kMaxSlotBytes = uint64_t{1} << 48;

absl::Status CheckImages(const v1::Sidecar& sidecar, absl::string_view name) {
  uint64_t sum = 0;
  for (int i = 0; i < sidecar.images_size(); ++i) {
    const v1::SidecarImage& image = sidecar.images(i);
    bool sized = image.bytes() > 0 && image.bytes() % kImageAlignment == 0 && image.bytes() <= kMaxSlotBytes;
    bool headed = image.header_bytes() % kImageAlignment == 0 && image.header_bytes() <= image.bytes();
    if (!sized || !headed) return Corrupt(name, absl::StrCat("image ", i, " has impossible sizes"));
    if (image.name() != ImageFileName(sidecar.rank(), sidecar.world_size(), i)) {
      return Corrupt(name, absl::StrCat("image ", i, " has a foreign name"));
    }
    sum += image.bytes();
  }
  if (sidecar.images_size() == 0 || sidecar.images_size() > int{kMaxImages})
    return Corrupt(name, "bad number of images");
  if (sum != sidecar.slot_bytes() || sum > kMaxSlotBytes) return Corrupt(name, "image sizes do not add up");
  return absl::OkStatus();
}

absl::Status CheckChunks(const v1::Sidecar& sidecar, absl::string_view name) {
  uint64_t chunk = sidecar.chunk_bytes();
  bool sane = chunk >= kMinChunkBytes && chunk <= kMaxChunkBytes && (chunk & (chunk - 1)) == 0;
  if (!sane) return Corrupt(name, "impossible chunk size");
  uint64_t count = (sidecar.slot_bytes() + chunk - 1) / chunk;
  if (count != static_cast<uint64_t>(sidecar.chunk_crc32c_size())) return Corrupt(name, "chunk checksums are missing");
  return absl::OkStatus();
}

absl::Status CheckFile(const v1::Manifest& manifest, const v1::ManifestFile& file, absl::string_view name) {
  auto parsed = ParseRankFileName(file.name());
  bool ours = parsed && !parsed->sidecar && parsed->rank == file.rank() && parsed->world == manifest.world_size() &&
              parsed->image == file.image() && file.attempt() == manifest.attempt() &&
              file.sidecar() == SidecarFileName(file.rank(), manifest.world_size()) && file.bytes() <= kMaxSlotBytes;
  return ours ? absl::OkStatus() : Corrupt(name, absl::StrCat("lists a foreign file: ", file.name()));
}

// Ranks 0 .. world-1, of each its images 0, 1, 2 ...: no gap, nothing twice.
absl::Status CheckOrder(const v1::Manifest& manifest, absl::string_view name) {
  uint32_t next_rank = 0;
  uint32_t next_image = 0;
  for (const v1::ManifestFile& file : manifest.files()) {
    if (file.image() == 0) {
      ++next_rank;
      next_image = 0;
    }
    bool in_order = next_rank > 0 && file.rank() == next_rank - 1 && file.image() == next_image++;
    if (!in_order) return Corrupt(name, absl::StrCat(file.name(), " is not where it belongs in the list"));
  }
  return next_rank == manifest.world_size() ? absl::OkStatus() : Corrupt(name, "lacks ranks");
}

absl::Status CheckFiles(const v1::Manifest& manifest, absl::string_view name) {
  CKPTD_RETURN_IF_ERROR(CheckOrder(manifest, name));
  uint64_t sum = 0;
  for (const v1::ManifestFile& file : manifest.files()) {
    CKPTD_RETURN_IF_ERROR(CheckFile(manifest, file, name));
    if (__builtin_add_overflow(sum, file.bytes(), &sum)) return Corrupt(name, "file sizes do not add up");
  }
  return sum == manifest.total_bytes() ? absl::OkStatus() : Corrupt(name, "file sizes do not add up");
}

bool SameSnapshot(const v1::Manifest& a, const v1::Sidecar& b) {
  return a.job() == b.job() && a.attempt() == b.attempt() && a.step() == b.step() && a.world_size() == b.world_size() &&
         a.parent_attempt() == b.parent_attempt() && a.parent_step() == b.parent_step();
}

void AddFiles(const v1::Sidecar& sidecar, uint32_t text_crc, v1::Manifest* manifest) {
  for (int i = 0; i < sidecar.images_size(); ++i) {
    v1::ManifestFile* file = manifest->add_files();
    file->set_name(sidecar.images(i).name());
    file->set_bytes(sidecar.images(i).bytes());
    file->set_attempt(sidecar.attempt());
    file->set_rank(sidecar.rank());
    file->set_image(i);
    file->set_sidecar(SidecarFileName(sidecar.rank(), sidecar.world_size()));
    file->set_sidecar_crc32c(text_crc);
  }
  manifest->set_total_bytes(manifest->total_bytes() + sidecar.slot_bytes());
  manifest->set_created_unix_ns(std::max(manifest->created_unix_ns(), sidecar.flushed_unix_ns()));
}

void CopyIdentity(const v1::Sidecar& from, v1::Manifest* manifest) {
  manifest->set_job(from.job());
  manifest->set_attempt(from.attempt());
  manifest->set_step(from.step());
  manifest->set_parent_attempt(from.parent_attempt());
  manifest->set_parent_step(from.parent_step());
  manifest->set_world_size(from.world_size());
}

}  // namespace

std::string SidecarText(v1::Sidecar sidecar) { return CheckedText(sidecar); }
std::string ManifestText(v1::Manifest manifest) { return CheckedText(manifest); }

absl::StatusOr<v1::Sidecar> ParseSidecar(absl::string_view text, absl::string_view name) {
  CKPTD_ASSIGN_OR_RETURN(auto sidecar, Parse<v1::Sidecar>(text, name, kMaxSidecarBytes));
  CKPTD_RETURN_IF_ERROR(CheckHead(sidecar, name));
  if (sidecar.rank() >= sidecar.world_size()) return Corrupt(name, "rank beyond the world size");
  CKPTD_RETURN_IF_ERROR(CheckImages(sidecar, name));
  CKPTD_RETURN_IF_ERROR(CheckChunks(sidecar, name));
  return sidecar;
}

absl::StatusOr<v1::Manifest> ParseManifest(absl::string_view text, absl::string_view name) {
  CKPTD_ASSIGN_OR_RETURN(auto manifest, Parse<v1::Manifest>(text, name, kMaxManifestBytes));
  CKPTD_RETURN_IF_ERROR(CheckHead(manifest, name));
  CKPTD_RETURN_IF_ERROR(CheckFiles(manifest, name));
  return manifest;
}

absl::StatusOr<v1::Manifest> MakeManifest(const std::vector<std::string>& texts) {
  v1::Manifest manifest;
  for (Rank rank = 0; rank < texts.size(); ++rank) {
    std::string name = absl::StrCat("sidecar of rank ", rank);
    CKPTD_ASSIGN_OR_RETURN(auto sidecar, ParseSidecar(texts[rank], name));
    if (rank == 0) CopyIdentity(sidecar, &manifest);
    bool belongs = SameSnapshot(manifest, sidecar) && sidecar.rank() == rank && sidecar.world_size() == texts.size();
    if (!belongs) return Corrupt(name, "belongs to another snapshot");
    AddFiles(sidecar, Crc32c(0, texts[rank].data(), texts[rank].size()), &manifest);
  }
  return manifest;
}

std::string AttemptText(const v1::AttemptRecord& record) { return PrintJson(record, JsonStyle::kIndented); }
std::string DecisionText(const v1::DecisionRecord& record) { return PrintJson(record, JsonStyle::kIndented); }

absl::StatusOr<v1::AttemptRecord> ParseAttemptText(absl::string_view text, absl::string_view name) {
  return ParsePlain<v1::AttemptRecord>(text, name);
}
absl::StatusOr<v1::DecisionRecord> ParseDecisionText(absl::string_view text, absl::string_view name) {
  return ParsePlain<v1::DecisionRecord>(text, name);
}

std::string MarkerText(AttemptId attempt) { return absl::StrCat("attempt ", attempt, "\n"); }

absl::StatusOr<AttemptId> ParseMarkerText(absl::string_view text, absl::string_view name) {
  AttemptId attempt = 0;
  bool ours = absl::ConsumePrefix(&text, "attempt ") && absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &attempt);
  if (!ours || attempt == 0) return Corrupt(name, "is no deletion marker");
  return attempt;
}

}  // namespace ckptd
