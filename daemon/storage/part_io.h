// Parts of a PosixStore: one borrowed IoQueue each, O_DIRECT from and into the caller's memory where it works.
#ifndef CKPTD_DAEMON_STORAGE_PART_IO_H_
#define CKPTD_DAEMON_STORAGE_PART_IO_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/os/files.h"
#include "daemon/os/io_queue.h"
#include "daemon/storage/io_pool.h"
#include "daemon/storage/publish.h"
#include "daemon/storage/store.h"

namespace ckptd {

class PosixPartWriter final : public PartWriter {
 public:
  struct Target {
    std::string final_path;
    uint64_t size = 0;
    size_t io_bytes = 0;  // largest single transfer
    bool direct = false;  // `temp` was opened so
  };
  // `publisher` outlives the writer.
  PosixPartWriter(Publisher& publisher, TempFile temp, IoPool::Queue queue, Target target);
  ~PosixPartWriter() override;

  [[nodiscard]] absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override;
  [[nodiscard]] absl::Status Sync() override;
  [[nodiscard]] absl::Status Finish() override;

 private:
  absl::Status Check(uint64_t offset, std::span<const std::byte> bytes) const;
  absl::Status Queue(uint64_t offset, std::span<const std::byte> bytes);
  absl::Status Reap();
  absl::Status Drain();
  absl::Status Fail(absl::Status status);

  Publisher& publisher_;
  const Target target_;
  TempFile temp_;
  IoPool::Queue queue_;  // after temp_: giving it back waits for requests that use the file
  std::vector<IoCompletion> completions_;
  uint64_t queued_bytes_ = 0;
  absl::Status failure_;
};

class PosixPartReader final : public PartReader {
 public:
  // `direct` may be null. All of a part's bytes are at hand when `size` is right; a shorter file is CORRUPT. `pool`
  // outlives the reader.
  PosixPartReader(std::unique_ptr<File> buffered, std::unique_ptr<File> direct, uint64_t size, IoPool& pool);

  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] absl::Status Read(uint64_t offset, std::span<std::byte> memory, size_t piece_bytes,
                                  const OnPiece& on_piece) override;
  [[nodiscard]] absl::Status Scan(uint64_t offset, uint64_t length, const OnPiece& on_piece) override;

 private:
  absl::Status Check(uint64_t offset, uint64_t length, size_t piece_bytes) const;

  const std::unique_ptr<File> buffered_;
  const std::unique_ptr<File> direct_;
  const uint64_t size_;
  IoPool& pool_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_PART_IO_H_
