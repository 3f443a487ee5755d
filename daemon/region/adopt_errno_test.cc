// What a starting agent makes of a predecessor's directory when one of its calls fails: it starts, or says why not. A
// file that could not be read is no bad file: whatever fails, no sealed slot goes.
#include <gtest/gtest.h>

#include <cerrno>

#include "daemon/base/status_macros.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/region/adopt.h"
#include "daemon/region/region_test_util.h"

namespace ckptd::region {
namespace {

// The n-th call of a Files and its File says `error`.
struct Turn {
  uint64_t left = 0;
  int error = 0;
  bool came = false;

  absl::Status operator()(const char* operation, const std::string& path) {
    if (left == 0 || --left != 0) return absl::OkStatus();
    came = true;
    return FileError(error, operation, path);
  }
};

class FailingFile final : public FileAround {
 public:
  FailingFile(std::unique_ptr<File> inner, Turn& turn) : FileAround(std::move(inner)), turn_(turn) {}
  absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) override {
    CKPTD_RETURN_IF_ERROR(turn_("read", path()));
    return inner_->PRead(offset, bytes);
  }
  absl::StatusOr<FileInfo> Stat() override {
    CKPTD_RETURN_IF_ERROR(turn_("fstat", path()));
    return inner_->Stat();
  }

 private:
  Turn& turn_;
};

class FailingFiles final : public FilesAround {
 public:
  explicit FailingFiles(Turn& turn) : FilesAround(PosixFiles()), turn_(turn) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    CKPTD_RETURN_IF_ERROR(turn_("open", path));
    CKPTD_ASSIGN_OR_RETURN(auto file, inner_.Open(path, options));
    return std::make_unique<FailingFile>(std::move(file), turn_);
  }
  absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override {
    CKPTD_RETURN_IF_ERROR(turn_("readdir", path));
    return inner_.ReadDir(path, max_entries);
  }
  absl::StatusOr<FileInfo> Stat(const std::string& path) override {
    CKPTD_RETURN_IF_ERROR(turn_("stat", path));
    return inner_.Stat(path);
  }

 private:
  Turn& turn_;
};

TEST(AdoptErrno, NoErrorCostsASealedSlot) {
  const TempDir dir;
  SealOne(*OpenRegion(dir.region()));
  uint64_t refused = 0;
  for (const int error : {EIO, EMFILE, ENOMEM, EINTR, EAGAIN, ENOSPC}) {
    for (uint64_t at = 1;; ++at) {
      Turn turn{.left = at, .error = error};
      FailingFiles files(turn);
      refused += Region::Open(files, SystemClock(), TestOptions(dir.region())).ok() ? 0 : 1;
      auto region = OpenRegion(dir.region());
      ASSERT_EQ(region->adopted().jobs.size(), 1u) << "call " << at;
      EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kSealed) << "call " << at;
      EXPECT_EQ(LostIn(*region), 0u) << "call " << at;
      if (!turn.came) break;
    }
  }
  EXPECT_GT(refused, 50u);
}

}  // namespace
}  // namespace ckptd::region
