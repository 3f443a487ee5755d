// Files that appear all together or not at all: each is written under a temporary name, and gets its own when every one
// is complete, matches its checksum and is on the disk. Nothing that exists is ever replaced. One thread.
#ifndef CKPTD_TOOLS_CKPTCTL_OUTPUT_FILES_H_
#define CKPTD_TOOLS_CKPTCTL_OUTPUT_FILES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/files.h"

namespace ckptd {

class OutputFiles {
 public:
  // Makes the directory, and those above it, where they are missing.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<OutputFiles>> Open(Files& files, const std::string& dir);
  ~OutputFiles();  // removes what was not committed

  // The next file. INVALID_ARGUMENT unless `name` is one that ckptd gives its images; REFUSED when it exists.
  [[nodiscard]] absl::Status Begin(const std::string& name, uint64_t bytes);
  // Without a hole behind what came before; not beyond the announced size.
  [[nodiscard]] absl::Status Append(uint64_t offset, std::span<const std::byte> bytes);
  // CORRUPT when bytes are missing, or are not those that were saved.
  [[nodiscard]] absl::Status End(uint32_t crc32c);

  // All get their names.
  [[nodiscard]] absl::Status Commit();
  [[nodiscard]] uint64_t bytes() const { return total_; }

 private:
  struct Output {
    std::string name;
    std::string temporary;
    std::unique_ptr<File> file;  // while it is being written
    uint64_t bytes = 0;
  };

  OutputFiles(Files& files, std::string dir) : files_(files), dir_(std::move(dir)) {}
  [[nodiscard]] std::string PathOf(const std::string& name) const { return dir_ + "/" + name; }
  absl::Status Publish(const Output& output);

  Files& files_;
  const std::string dir_;
  std::vector<Output> outputs_;
  uint64_t written_ = 0;  // of the file that is being written
  uint32_t crc_ = 0;
  uint64_t total_ = 0;
  size_t published_ = 0;
  bool committed_ = false;
};

// Makes `dir` and what is missing above it.
[[nodiscard]] absl::Status MakeDirectories(Files& files, const std::string& dir);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_OUTPUT_FILES_H_
