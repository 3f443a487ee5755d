#include "tools/ckptctl/local_step.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/header_reader.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/format/tensor_entries.h"
#include "daemon/os/io_queue.h"
#include "daemon/storage/checked_read.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

constexpr size_t kMaxFiles = 1 << 20;
constexpr size_t kQueueDepth = 8;
constexpr size_t kRanksNamed = 16;

struct Place {
  std::string dir;   // absolute
  std::string file;  // empty: all of the directory
};

absl::StatusOr<Place> Locate(Files& files, const std::string& path) {
  std::error_code failed;
  std::string clean = std::filesystem::absolute(path, failed).string();
  if (failed) return ErrnoError(failed.value(), "the current directory, for", path);
  while (clean.size() > 1 && clean.back() == '/') clean.pop_back();
  CKPTD_ASSIGN_OR_RETURN(FileInfo info, files.Stat(clean));
  if (info.type == FileType::kDirectory) return Place{clean, ""};
  const size_t slash = clean.rfind('/');
  return Place{slash == 0 ? "/" : clean.substr(0, slash), clean.substr(slash + 1)};
}

absl::StatusOr<std::vector<std::string>> ImagesIn(Files& files, const Place& place) {
  if (!place.file.empty()) return std::vector<std::string>{place.file};
  CKPTD_ASSIGN_OR_RETURN(auto entries, files.ReadDir(place.dir, kMaxFiles));
  std::vector<std::string> names;
  for (const DirEntry& entry : entries) {
    if (absl::EndsWith(entry.name, ".safetensors")) names.push_back(entry.name);
  }
  if (!names.empty()) return names;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat(place.dir, ": no safetensors files in it"));
}

absl::StatusOr<ImageInfo> ReadHeader(Files& files, const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path, {}));
  CKPTD_ASSIGN_OR_RETURN(FileInfo info, file->Stat());
  std::string text(std::min<uint64_t>(info.size, kLengthFieldBytes), '\0');
  CKPTD_ASSIGN_OR_RETURN(size_t got, file->PRead(0, std::as_writable_bytes(std::span(text))));
  CKPTD_ASSIGN_OR_RETURN(uint64_t bytes, FileHeaderBytes(absl::string_view(text.data(), got), info.size, path));
  text.resize(bytes);
  CKPTD_ASSIGN_OR_RETURN(got, file->PRead(0, std::as_writable_bytes(std::span(text))));
  return ReadFileHeader(absl::string_view(text.data(), got), info.size, path);
}

Rank RankOf(const std::string& name) {
  auto parsed = ParseRankFileName(name);
  return parsed ? parsed->rank : 0;
}

// "; no file is here of ranks 1, 3", or empty.
std::string RanksWithoutFile(const std::vector<RankFile>& files) {
  std::set<Rank> there;
  const uint32_t world = files[0].world;
  for (const RankFile& file : files) {
    if (file.world == world) there.insert(file.rank);
  }
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < world && missing.size() < kRanksNamed; ++rank) {
    if (there.count(rank) == 0) missing.push_back(rank);
  }
  if (missing.empty()) return "";
  const size_t more = world - there.size() - missing.size();
  return absl::StrCat("; no file is here of ranks ", absl::StrJoin(missing, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, " more"));
}

// Agents write sidecars, or a directory of this name; `ckptctl restore` and `salvage` write neither.
bool IsOfStorage(Files& files, const std::string& dir) {
  if (ParseStepDirectoryName(std::filesystem::path(dir).lexically_normal().filename().string())) return true;
  const auto entries = files.ReadDir(dir, kMaxFiles);
  return entries.ok() && std::any_of(entries->begin(), entries->end(), [](const DirEntry& entry) {
           const auto file = ParseRankFileName(entry.name);
           return file && file->sidecar;
         });
}

// The check of one directory.
class Checker {
 public:
  Checker(Files& files, std::string dir, const OnProgress& progress)
      : files_(files), dir_(std::move(dir)), progress_(progress) {}

  absl::Status Open() {
    PosixStoreOptions options;
    options.root = dir_;
    options.direct = false;  // nothing is written here, not even to probe
    options.make_queue = MakeIoQueueFactory(IoQueueChoice::kAuto, kQueueDepth);
    CKPTD_ASSIGN_OR_RETURN(store_, OpenPosixStore(files_, options));
    return absl::OkStatus();
  }

  absl::Status CheckCommitted(const v1::Manifest& manifest) {
    check_.set_attempt(manifest.attempt());
    check_.set_step(manifest.step());
    check_.set_bytes_total(manifest.total_bytes());
    std::set<std::string> done;
    for (const v1::ManifestFile& file : manifest.files()) {
      if (!done.insert(file.sidecar()).second) continue;
      CKPTD_RETURN_IF_ERROR(CheckRank(file.sidecar(), file.sidecar_crc32c()));
    }
    return absl::OkStatus();
  }

  // Of a step's directory without a manifest. Files that are no rank's are nobody's step.
  void NoteUncommitted(const std::vector<std::string>& names) {
    std::vector<RankFile> files;
    for (const std::string& name : names) {
      if (auto parsed = ParseRankFileName(name)) files.push_back(*parsed);
    }
    if (files.empty()) return;
    check_.set_uncommitted(true);
    Add(kManifestName, 0, 0,
        absl::StrCat("missing: the step was never committed, and no restore takes it", RanksWithoutFile(files)));
  }

  // Every chunk of the rank's images. `crc32c`: of the sidecar's text, as the commit has it.
  absl::Status CheckRank(const std::string& sidecar_name, std::optional<uint32_t> crc32c) {
    auto text = store_->ReadSmall(sidecar_name, kMaxSidecarBytes);
    auto sidecar = text.ok() ? ParseSidecar(*text, sidecar_name) : text.status();
    if (sidecar.ok() && crc32c && Crc32c(0, text->data(), text->size()) != *crc32c) {
      sidecar = Error(ErrorCode::CORRUPT, "it is not the one that was committed");
    }
    if (!sidecar.ok()) return Note(sidecar_name, sidecar.status());
    StoredRank rank;
    for (const v1::SidecarImage& image : sidecar->images()) rank.parts.push_back({image.name(), image.bytes()});
    rank.chunk_bytes = sidecar->chunk_bytes();
    rank.chunk_crcs.assign(sidecar->chunk_crc32c().begin(), sidecar->chunk_crc32c().end());
    return ReadRank(rank);
  }

  absl::Status CheckHeader(const std::string& name) {
    auto header = ReadHeader(files_, dir_ + "/" + name);
    return header.ok() ? absl::OkStatus() : Note(name, header.status());
  }

  [[nodiscard]] bool HasSidecar(const std::string& name) { return Exists(files_, dir_ + "/" + name).value_or(false); }
  [[nodiscard]] v1::VerifyProgress& check() { return check_; }

 private:
  absl::Status ReadRank(const StoredRank& rank) {
    const uint64_t before = check_.bytes_done();
    check_.set_bytes_total(std::max(check_.bytes_total(), before + rank.bytes()));
    CheckedReadOptions options;
    options.on_bad = [&](const BadChunk& bad) { Add(bad.part, bad.offset, bad.bytes, bad.reason); };
    options.progress = [&](uint64_t done) { progress_(before + done, check_.bytes_total()); };
    absl::Status status = ReadChecked(*store_, rank, options);
    check_.set_bytes_done(before + rank.bytes());
    return status.ok() ? status : Note(rank.parts.empty() ? dir_ : rank.parts[0].name, status);
  }

  void Add(const std::string& file, uint64_t offset, uint64_t bytes, const std::string& reason) {
    v1::Damage* damage = check_.add_damage();
    damage->set_source("storage");
    damage->set_rank(RankOf(file));
    damage->set_file(file);
    damage->set_offset(offset);
    damage->set_bytes(bytes);
    damage->set_reason(reason);
  }

  // What is missing or damaged is a result; what cannot be read is an error.
  absl::Status Note(const std::string& file, const absl::Status& status) {
    ErrorCode code = CodeOf(status);
    if (code != ErrorCode::CORRUPT && code != ErrorCode::NOT_FOUND) return status;
    Add(file, 0, 0, std::string(status.message()));
    return absl::OkStatus();
  }

  Files& files_;
  const std::string dir_;
  const OnProgress& progress_;
  std::unique_ptr<Store> store_;
  v1::VerifyProgress check_;
};

absl::Status CheckFiles(Checker& checker, const std::vector<std::string>& names) {
  std::set<std::string> done;
  for (const std::string& name : names) {
    CKPTD_RETURN_IF_ERROR(checker.CheckHeader(name));
    auto parsed = ParseRankFileName(name);
    std::string sidecar = parsed ? SidecarFileName(parsed->rank, parsed->world) : "";
    if (sidecar.empty() || !checker.HasSidecar(sidecar)) {
      checker.check().set_note(absl::StrCat(name, " has no checksums beside it: only its header was checked"));
    } else if (done.insert(sidecar).second) {
      CKPTD_RETURN_IF_ERROR(checker.CheckRank(sidecar, std::nullopt));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::InspectResponse> InspectPath(Files& files, const std::string& path, std::optional<Rank> rank) {
  CKPTD_ASSIGN_OR_RETURN(Place place, Locate(files, path));
  CKPTD_ASSIGN_OR_RETURN(auto names, ImagesIn(files, place));
  std::vector<NamedImage> images;
  for (const std::string& name : names) {
    CKPTD_ASSIGN_OR_RETURN(ImageInfo info, ReadHeader(files, place.dir + "/" + name));
    CKPTD_ASSIGN_OR_RETURN(NamedImage image, NameImage(name, RankOf(name), std::move(info)));
    images.push_back(std::move(image));
  }
  const TensorExtents extents = ExtentsOf(images);
  v1::InspectResponse response;
  response.set_source(path);
  for (const NamedImage& image : images) {
    if (rank && image.rank != *rank) continue;
    for (const TensorEntry& tensor : image.info.tensors)
      *response.add_tensors() = ToTensorEntry(image, tensor, extents);
  }
  if (response.tensors_size() != 0) return response;
  return Error(ErrorCode::NOT_FOUND, absl::StrCat(path, ": no tensors of rank ", rank.value_or(0)));
}

absl::StatusOr<v1::VerifyProgress> VerifyPath(Files& files, const std::string& path, const OnProgress& progress) {
  CKPTD_ASSIGN_OR_RETURN(Place place, Locate(files, path));
  Checker checker(files, place.dir, progress);
  CKPTD_RETURN_IF_ERROR(checker.Open());
  auto text = ReadSmall(files, place.dir + "/" + kManifestName, kMaxManifestBytes);
  const bool whole = place.file.empty() && CodeOf(text.status()) != ErrorCode::NOT_FOUND;
  if (whole) {
    CKPTD_RETURN_IF_ERROR(text.status());
    auto manifest = ParseManifest(*text, place.dir + "/" + kManifestName);
    if (!manifest.ok()) return manifest.status();
    CKPTD_RETURN_IF_ERROR(checker.CheckCommitted(*manifest));
  } else {
    CKPTD_ASSIGN_OR_RETURN(auto names, ImagesIn(files, place));
    if (place.file.empty() && IsOfStorage(files, place.dir)) checker.NoteUncommitted(names);
    CKPTD_RETURN_IF_ERROR(CheckFiles(checker, names));
  }
  checker.check().set_done(true);
  return std::move(checker.check());
}

}  // namespace ckptd
