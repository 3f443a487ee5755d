#include "tools/ckptctl/output_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"

namespace ckptd {

absl::Status MakeDirectories(Files& files, const std::string& dir) {
  if (dir.empty() || dir == "/") return absl::OkStatus();
  auto info = files.Stat(dir);
  if (info.ok() && info->type == FileType::kDirectory) return absl::OkStatus();
  if (info.ok()) return Error(ErrorCode::REFUSED, absl::StrCat(dir, ": exists and is no directory"));
  if (CodeOf(info.status()) != ErrorCode::NOT_FOUND) return info.status();
  if (dir.find('/') != std::string::npos) CKPTD_RETURN_IF_ERROR(MakeDirectories(files, ParentOf(dir)));
  absl::Status made = files.Mkdir(dir, 0777);
  return absl::IsAlreadyExists(made) ? absl::OkStatus() : made;
}

absl::StatusOr<std::unique_ptr<OutputFiles>> OutputFiles::Open(Files& files, const std::string& dir) {
  CKPTD_RETURN_IF_ERROR(MakeDirectories(files, dir));
  return std::unique_ptr<OutputFiles>(new OutputFiles(files, dir));
}

OutputFiles::~OutputFiles() {
  if (committed_) return;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    (void)files_.Unlink(PathOf(i < published_ ? outputs_[i].name : outputs_[i].temporary));
  }
}

absl::Status OutputFiles::Begin(const std::string& name, uint64_t bytes) {
  auto parsed = ParseRankFileName(name);
  if (!parsed || parsed->sidecar) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("'", name, "' is no name of a checkpoint file"));
  }
  CKPTD_ASSIGN_OR_RETURN(bool exists, Exists(files_, PathOf(name)));
  if (exists) return Error(ErrorCode::REFUSED, absl::StrCat(PathOf(name), ": exists; choose an empty directory"));
  Output output;
  output.name = name;
  output.temporary = absl::StrFormat(".ckptctl-%016x.tmp", RandomId());
  output.bytes = bytes;
  OpenOptions options;
  options.write = true;
  options.create = true;
  options.mode = 0666;
  CKPTD_ASSIGN_OR_RETURN(output.file, files_.Open(PathOf(output.temporary), options));
  outputs_.push_back(std::move(output));
  written_ = 0;
  crc_ = 0;
  absl::Status reserved = bytes == 0 ? absl::OkStatus() : outputs_.back().file->Fallocate(bytes);
  return absl::IsUnimplemented(reserved) ? absl::OkStatus() : reserved;
}

absl::Status OutputFiles::Append(uint64_t offset, std::span<const std::byte> bytes) {
  if (outputs_.empty() || outputs_.back().file == nullptr) return Error(ErrorCode::PROTOCOL, "data of no file");
  Output& output = outputs_.back();
  if (offset != written_ || bytes.size() > output.bytes - written_) {
    return Error(ErrorCode::PROTOCOL, absl::StrCat(output.name, ": data at ", offset, " where ", written_, " is next"));
  }
  CKPTD_RETURN_IF_ERROR(output.file->PWrite(offset, bytes));
  crc_ = Crc32c(crc_, bytes.data(), bytes.size());
  written_ += bytes.size();
  total_ += bytes.size();
  return absl::OkStatus();
}

absl::Status OutputFiles::End(uint32_t crc32c) {
  if (outputs_.empty() || outputs_.back().file == nullptr) return Error(ErrorCode::PROTOCOL, "end of no file");
  Output& output = outputs_.back();
  if (written_ != output.bytes) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(output.name, ": ", written_, " of ", output.bytes, " bytes came"));
  }
  if (crc_ != crc32c) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(output.name, ": its bytes are not those that were saved"));
  }
  CKPTD_RETURN_IF_ERROR(output.file->Sync());
  CKPTD_RETURN_IF_ERROR(output.file->Close());
  output.file.reset();
  return absl::OkStatus();
}

absl::Status OutputFiles::Publish(const Output& output) {
  absl::Status linked = files_.RenameNoReplace(PathOf(output.temporary), PathOf(output.name));
  if (absl::IsUnimplemented(linked)) {
    linked = files_.Link(PathOf(output.temporary), PathOf(output.name));
    if (linked.ok()) return files_.Unlink(PathOf(output.temporary));
  }
  if (!absl::IsAlreadyExists(linked)) return linked;
  return Error(ErrorCode::REFUSED, absl::StrCat(PathOf(output.name), ": appeared meanwhile"));
}

absl::Status OutputFiles::Commit() {
  for (const Output& output : outputs_) {
    if (output.file != nullptr) return Error(ErrorCode::PROTOCOL, absl::StrCat(output.name, ": has no end"));
  }
  for (; published_ < outputs_.size(); ++published_) CKPTD_RETURN_IF_ERROR(Publish(outputs_[published_]));
  CKPTD_RETURN_IF_ERROR(files_.SyncDir(dir_));
  committed_ = true;
  return absl::OkStatus();
}

}  // namespace ckptd
