// Parts of a PosixStore: one IoQueue each, O_DIRECT from and into the caller's memory where it works.
#ifndef CKPTD_DAEMON_STORAGE_PART_IO_H_
#define CKPTD_DAEMON_STORAGE_PART_IO_H_

#include <memory>
#include <string>

#include "daemon/os/files.h"
#include "daemon/os/io_queue.h"
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
  PosixPartWriter(Publisher& publisher, TempFile temp, std::unique_ptr<IoQueue> queue, Target target);
  ~PosixPartWriter() override;

  [[nodiscard]] absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) override;
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
  std::unique_ptr<IoQueue> queue_;  // after temp_: its destruction waits for requests that use the file
  uint64_t queued_bytes_ = 0;
  absl::Status failure_;
};

class PosixPartReader final : public PartReader {
 public:
  // `direct` may be null. All of a part's bytes are at hand when `size` is right; a shorter file is CORRUPT.
  PosixPartReader(std::unique_ptr<File> buffered, std::unique_ptr<File> direct, uint64_t size,
                  IoQueueFactory make_queue);

  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] absl::Status Read(uint64_t offset, std::span<std::byte> memory, size_t piece_bytes,
                                  const OnPiece& on_piece) override;

 private:
  absl::Status Check(uint64_t offset, size_t length, size_t piece_bytes) const;

  const std::unique_ptr<File> buffered_;
  const std::unique_ptr<File> direct_;
  const uint64_t size_;
  const IoQueueFactory make_queue_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_PART_IO_H_
