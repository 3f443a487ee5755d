// A Store that passes everything on: base of those that watch or break one call.
#ifndef CKPTD_DAEMON_STORAGE_TESTING_STORE_AROUND_H_
#define CKPTD_DAEMON_STORAGE_TESTING_STORE_AROUND_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/storage/store.h"

namespace ckptd {

class StoreAround : public Store {
 public:
  explicit StoreAround(Store& inner) : inner_(inner) {}

  absl::Status Probe() override { return inner_.Probe(); }
  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    return inner_.CreateExclusive(name, bytes);
  }
  absl::Status Confirm(const std::string& name) override { return inner_.Confirm(name); }
  absl::StatusOr<std::string> ReadSmall(const std::string& name, size_t max_bytes) override {
    return inner_.ReadSmall(name, max_bytes);
  }
  absl::StatusOr<std::vector<DirEntry>> List(const std::string& directory) override { return inner_.List(directory); }
  absl::StatusOr<FileInfo> Stat(const std::string& name) override { return inner_.Stat(name); }
  absl::Status Delete(const std::string& name) override { return inner_.Delete(name); }
  absl::Status DeleteDirectory(const std::string& directory) override { return inner_.DeleteDirectory(directory); }
  absl::StatusOr<size_t> RemoveTemporary(const std::string& directory, Nanos age) override {
    return inner_.RemoveTemporary(directory, age);
  }
  absl::StatusOr<size_t> RemoveLeftovers(const std::string& directory) override {
    return inner_.RemoveLeftovers(directory);
  }
  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name, uint64_t size) override {
    return inner_.OpenForWrite(name, size);
  }
  absl::StatusOr<std::unique_ptr<PartReader>> OpenForRead(const std::string& name) override {
    return inner_.OpenForRead(name);
  }
  absl::StatusOr<SpaceInfo> Space() override { return inner_.Space(); }
  std::string Describe() const override { return inner_.Describe(); }
  bool IsDirect() const override { return inner_.IsDirect(); }

 protected:
  Store& inner_;
};

class WriterAround : public PartWriter {
 public:
  explicit WriterAround(std::unique_ptr<PartWriter> inner) : inner_(std::move(inner)) {}
  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override {
    return inner_->Write(offset, bytes);
  }
  absl::Status Sync() override { return inner_->Sync(); }
  absl::Status Finish() override { return inner_->Finish(); }

 protected:
  std::unique_ptr<PartWriter> inner_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_TESTING_STORE_AROUND_H_
