// ckptctl restore JOB[@STEP] --to DIR [--rank R]
#include <csignal>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/posix_files.h"
#include "tools/ckptctl/client.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/output.h"
#include "tools/ckptctl/output_files.h"
#include "tools/ckptctl/progress.h"

namespace ckptd {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// The first ^C ends the work and removes what was written; the second ends the process.
void OnInterrupt(int) {
  interrupted = 1;
  std::signal(SIGINT, SIG_DFL);
}

// The stream of proto/ckptd/v1/admin.proto, into files.
class Receiver {
 public:
  Receiver(OutputFiles& out, bool quiet) : out_(out), progress_("restore", quiet) {}

  absl::Status Take(const v1::RestoreResponse& message) {
    if (interrupted != 0) return Error(ErrorCode::CANCELLED, "interrupted; nothing was kept");
    switch (message.part_case()) {
      case v1::RestoreResponse::kBegin:
        return TakeBegin(message.begin());
      case v1::RestoreResponse::kData:
        return TakeData(message.data());
      case v1::RestoreResponse::kEnd:
        return TakeEnd(message.end());
      case v1::RestoreResponse::PART_NOT_SET:
        break;
    }
    return Error(ErrorCode::PROTOCOL, "the agent sent what this ckptctl does not know");
  }

  // Every announced file came whole.
  absl::Status Finish() {
    if (begin_ == nullptr || file_ != begin_->files_size()) {
      return Error(ErrorCode::PROTOCOL, "the agent ended the restore half way");
    }
    return out_.Commit();
  }
  [[nodiscard]] const v1::RestoreBegin& begin() const { return *begin_; }

 private:
  absl::Status TakeBegin(const v1::RestoreBegin& begin) {
    if (begin_ != nullptr) return Error(ErrorCode::PROTOCOL, "the agent began twice");
    begin_ = std::make_unique<v1::RestoreBegin>(begin);
    for (const v1::RestoreFile& file : begin.files()) total_ += file.bytes();
    return NextFile();
  }
  absl::Status NextFile() {
    if (file_ == begin_->files_size()) return absl::OkStatus();
    const v1::RestoreFile& file = begin_->files(file_);
    return out_.Begin(file.name(), file.bytes());
  }
  absl::Status CheckFile(uint32_t file) const {
    if (begin_ != nullptr && file == static_cast<uint32_t>(file_) && file_ < begin_->files_size())
      return absl::OkStatus();
    return Error(ErrorCode::PROTOCOL, "the agent sent the files out of order");
  }
  absl::Status TakeData(const v1::RestoreData& data) {
    CKPTD_RETURN_IF_ERROR(CheckFile(data.file()));
    CKPTD_RETURN_IF_ERROR(out_.Append(data.offset(), std::as_bytes(std::span(data.data()))));
    progress_.Update(out_.bytes(), total_);
    return absl::OkStatus();
  }
  absl::Status TakeEnd(const v1::RestoreEnd& end) {
    CKPTD_RETURN_IF_ERROR(CheckFile(end.file()));
    CKPTD_RETURN_IF_ERROR(out_.End(end.crc32c()));
    ++file_;
    return NextFile();
  }

  OutputFiles& out_;
  Progress progress_;
  std::unique_ptr<v1::RestoreBegin> begin_;
  int file_ = 0;
  uint64_t total_ = 0;
};

std::string Summary(const std::string& dir, const v1::RestoreBegin& begin, uint64_t bytes) {
  std::string out;
  for (const std::string& sentence : begin.skipped()) absl::StrAppend(&out, "passed over: ", Clean(sentence), "\n");
  for (const v1::RestoreFile& file : begin.files()) absl::StrAppend(&out, dir, "/", file.name(), "\n");
  absl::StrAppend(&out, "step ", begin.step(), " of attempt ", begin.attempt(), " from ", begin.source(), ", ",
                  FormatBytes(bytes), "\n");
  return out;
}

}  // namespace

absl::StatusOr<int> RunRestore(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(auto rank, args.GetRank("--rank"));
  const std::string dir = args.Get("--to");
  if (dir.empty()) return Error(ErrorCode::INVALID_ARGUMENT, "restore wants --to DIR");
  v1::RestoreRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_target(), ParseTarget(args.word(0)));
  if (rank) request.set_rank(*rank);
  CKPTD_ASSIGN_OR_RETURN(auto client, Client::Connect(args.Get("--agent")));
  std::signal(SIGINT, OnInterrupt);
  std::unique_ptr<OutputFiles> out;
  std::unique_ptr<Receiver> receiver;
  // The directory is made when the agent has something for it.
  CKPTD_RETURN_IF_ERROR(client->Restore(request, [&](const v1::RestoreResponse& message) -> absl::Status {
    if (out == nullptr) {
      CKPTD_ASSIGN_OR_RETURN(out, OutputFiles::Open(PosixFiles(), dir));
      receiver = std::make_unique<Receiver>(*out, json);
    }
    return receiver->Take(message);
  }));
  if (receiver == nullptr) return Error(ErrorCode::PROTOCOL, "the agent sent nothing");
  CKPTD_RETURN_IF_ERROR(receiver->Finish());
  if (json) {
    PrintJson(receiver->begin());
  } else {
    Print(Summary(dir, receiver->begin(), out->bytes()));
  }
  return kYes;
}

}  // namespace ckptd
