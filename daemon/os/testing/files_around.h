// A Files and a File that pass everything on: bases of those that break one call.
#ifndef CKPTD_DAEMON_OS_TESTING_FILES_AROUND_H_
#define CKPTD_DAEMON_OS_TESTING_FILES_AROUND_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/os/files.h"

namespace ckptd {

// With a prefix: what runs over the simulator from "/" runs over the real files below a folder.
class FilesAround : public Files {
 public:
  explicit FilesAround(Files& inner, std::string prefix = "") : inner_(inner), prefix_(std::move(prefix)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    return inner_.Open(prefix_ + path, options);
  }
  absl::Status Mkdir(const std::string& path, uint32_t mode) override { return inner_.Mkdir(prefix_ + path, mode); }
  absl::Status Rmdir(const std::string& path) override { return inner_.Rmdir(prefix_ + path); }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return inner_.Link(prefix_ + from, prefix_ + to);
  }
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override {
    return inner_.RenameNoReplace(prefix_ + from, prefix_ + to);
  }
  absl::Status Unlink(const std::string& path) override { return inner_.Unlink(prefix_ + path); }
  absl::Status SyncDir(const std::string& path) override { return inner_.SyncDir(prefix_ + path); }
  absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override {
    return inner_.ReadDir(prefix_ + path, max_entries);
  }
  absl::StatusOr<FileInfo> Stat(const std::string& path) override { return inner_.Stat(prefix_ + path); }
  absl::StatusOr<SpaceInfo> Space(const std::string& path) override { return inner_.Space(prefix_ + path); }

 protected:
  Files& inner_;
  const std::string prefix_;
};

class FileAround : public File {
 public:
  explicit FileAround(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}
  absl::Status PWrite(uint64_t offset, std::span<const std::byte> bytes) override {
    return inner_->PWrite(offset, bytes);
  }
  absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) override {
    return inner_->PRead(offset, bytes);
  }
  absl::Status Fallocate(uint64_t size) override { return inner_->Fallocate(size); }
  absl::Status PunchHole(uint64_t size) override { return inner_->PunchHole(size); }
  absl::Status Sync() override { return inner_->Sync(); }
  void StartWriteback(uint64_t offset, uint64_t length) override { inner_->StartWriteback(offset, length); }
  absl::StatusOr<FileInfo> Stat() override { return inner_->Stat(); }
  absl::Status Close() override { return inner_->Close(); }
  [[nodiscard]] int fd() const override { return inner_->fd(); }
  [[nodiscard]] const std::string& path() const override { return inner_->path(); }

 protected:
  std::unique_ptr<File> inner_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_FILES_AROUND_H_
